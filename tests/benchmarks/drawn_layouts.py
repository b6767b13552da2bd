"""Right layouts are drawn and verified: `python -m tests.benchmarks.drawn_layouts [N [FIRST]]`.

Every second one does not clip gradients. A layout that fails is a false alarm, or a defect.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import mimokit
from mimokit.cluster import EngineCluster, RankError
from mimokit.config import (
    ConfigError,
    ExperimentConfig,
    ModalityPresence,
    StrategyConfig,
    check_runnable,
)
from mimokit.experiment import VerificationReport, verify
from mimokit.units import counted
from tests.benchmarks.table import show
from tests.layouts_apart import apart_multimodal_config
from tests.layouts_multimodal import LANGUAGE, multimodal_config
from tests.layouts_networks import LANGUAGES

NUMBER = 200
MOST_RANKS = 8
STEPS = 5
ATTEMPTS = 3
"""A rank may be lost on a busy machine; layouts of which no attempt ends are left out."""
ENCODERS = ("clip", "dino", "qwen", "audio", "words")
STRATEGIES: dict[str, dict[str, Any]] = {
    "diloco": {"H": 2},
    "simple_reduce": {},
    "sparta": {"p_sparta": 0.3},
    "noloco": {"H": 2},
    "sparse_loco": {"H": 2, "chunk": 512, "density": 0.1},
    "demo": {"compression_topk": 4},
}
_OF_LANGUAGE = ("seq_length", "vocab_size", "rope_scaling", "max_position_embeddings")


@dataclass(frozen=True)
class Drawn:
    """A layout, and what `verify` said of it, after how many attempts."""

    number: int
    config: ExperimentConfig
    report: VerificationReport
    seconds: float
    attempts: int = 1

    @property
    def clips(self) -> bool:
        """Whether its gradients are clipped."""
        return self.config.runtime.clip_grad > 0


def drawn_config(number: int) -> ExperimentConfig:
    """Return a layout that runs; one with an odd number does not clip gradients."""
    draws = random.Random(number)
    while True:
        try:
            config = _drawn(draws)
            config.runtime.clip_grad = 0.0 if number % 2 else 1.0
            config.finalize()
            check_runnable(config)
            if mimokit.plan(config).world_size <= MOST_RANKS:
                config.name = f"drawn {number}"
                return config
        except (ConfigError, ZeroDivisionError):
            continue


def _drawn(draws: random.Random) -> ExperimentConfig:
    mode = draws.choice(("homogeneous", "colocated", "heterogeneous"))
    encoders = draws.sample(ENCODERS, draws.choice((1, 1, 2, 3)))
    options: dict[str, Any] = {
        "num_microbatches": draws.randint(1, 4),
        "three_axes": "qwen" in encoders and draws.random() < 0.5,
        "tied": draws.random() < 0.3,
        "presence": {name: _presence(draws) for name in encoders if draws.random() < 0.4},
        "frozen": [name for name in (*encoders, LANGUAGE) if draws.random() < 0.1],
        "seed": draws.randint(0, 1 << 20),
        "learning_rate": draws.choice((1e-3, 3e-3, 1e-2)),
    }
    if mode == "heterogeneous":
        sizes = {name: _sizes(draws, 4) for name in (*encoders, LANGUAGE)}
        if draws.random() < 0.3:
            sizes = dict(reversed(sizes.items()))
        config = apart_multimodal_config(sizes, **options)
    else:
        ranks = draws.choice((1, 2, 4, 4, 8))
        one = _of_ranks(draws, ranks)
        shared = {
            name: one if mode == "homogeneous" else _of_ranks(draws, ranks)
            for name in (*encoders, LANGUAGE)
        }
        config = multimodal_config(shared, mode, **options)
    _vary_language(draws, config)
    if draws.random() < 0.2:
        name = draws.choice(tuple(STRATEGIES))
        config.strategy = StrategyConfig(name=name, replicas=2, **STRATEGIES[name])
    _cut_sequences(draws, config)
    return config


def _cut_sequences(draws: random.Random, config: ExperimentConfig) -> None:
    """Draw modules that cut their sequences, in slices or over context-parallel ranks, and rows.

    The replicas of a module give it the ranks.
    """
    config.data.pack_sequences_in_batch = draws.random() < 0.25
    model = config.model
    alike = model.deployment_mode == "homogeneous"
    slices, contexts = draws.random() < 0.5, draws.random() < 0.5
    for name, sizes in model.module_parallelisms.items():
        network, ranks = model.module_architectures[name], sizes.tensor_parallel
        positions = config.data.seq_length if name == LANGUAGE else network.positions
        if not alike:
            slices, contexts = draws.random() < 0.3, draws.random() < 0.3
        replicas = sizes.data_parallel or 1
        if contexts and (alike or positions % 4 == 0) and replicas % 2 == 0:
            sizes.context_parallel, sizes.data_parallel = 2, replicas // 2
            if name == LANGUAGE:
                config.data.base_batch_size *= 2
        if slices and ranks > 1 and (alike or positions // sizes.context_parallel % ranks == 0):
            sizes.sequence_parallel = True


def _sizes(draws: random.Random, most: int) -> tuple[int, int, int]:
    while True:
        sizes = draws.choice((1, 1, 2)), draws.choice((1, 1, 2)), draws.choice((1, 1, 2, 4))
        if sizes[0] * sizes[1] * sizes[2] <= most:
            return sizes


def _of_ranks(draws: random.Random, ranks: int) -> tuple[int, int]:
    tensor = draws.choice([size for size in (1, 2, 4) if size <= ranks])
    return tensor, ranks // tensor


def _presence(draws: random.Random) -> ModalityPresence:
    return ModalityPresence(
        microbatches=[draws.random() < 0.8 for _ in range(2)],
        samples=[draws.random() < 0.6 for _ in range(8)],
    )


def _vary_language(draws: random.Random, config: ExperimentConfig) -> None:
    networks = config.model.module_architectures
    network = networks[LANGUAGE]
    fields: dict[str, Any] = {}
    if draws.random() < 0.5 and network.mrope_section is None:
        fields = dict(LANGUAGES[draws.choice(tuple(LANGUAGES))])
        for name in _OF_LANGUAGE:
            fields.pop(name, None)
        fields["num_layers"] = network.num_layers
        if fields.get("position_embedding_type") == "learned_absolute":
            fields["max_position_embeddings"] = 64
    elif network.mrope_section is None:
        fields = {"hidden_size": draws.choice((32, 48, 64)), "num_layers": 2 * network.num_layers}
    if draws.random() < 0.3:
        words = draws.choice((17, 19, 23, 131))
        fields |= {"vocab_size": words, "make_vocab_size_divisible_by": draws.choice((1, 3, 8))}
    fields["init_std"] = draws.choice((0.02, 0.05, 0.2))  # large weights have large gradients
    networks[LANGUAGE] = network.model_copy(update=fields)


def run(numbers: Iterable[int]) -> Iterator[Drawn]:
    """Verify drawn layouts, in one cluster."""
    with EngineCluster(n=MOST_RANKS, progress=False) as cluster:
        for number in numbers:
            config, start = drawn_config(number), time.perf_counter()
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    report = verify(cluster, config, steps=STEPS)
                except RankError as error:
                    print(f"{number} attempt {attempt}: {str(error)[-300:]}", flush=True)
                    continue
                yield Drawn(number, config, report, time.perf_counter() - start, attempt)
                break


def rows(drawn: list[Drawn] | None = None) -> list[dict[str, Any]]:
    """Return the figures of the table."""
    drawn = list(run(range(NUMBER))) if drawn is None else drawn
    return [row for clips in (True, False) for row in _rows_of(drawn, clips)]


def _rows_of(drawn: list[Drawn], clips: bool) -> Iterator[dict[str, Any]]:
    chosen = [one for one in drawn if one.clips == clips]
    if not chosen:
        return
    gradients = "clipped" if clips else "not clipped"
    layouts = counted(len(chosen), "layout")
    failed = [one.number for one in chosen if not one.report.passed]
    yield {
        "name": f"{layouts}, gradients {gradients}: false alarms {failed or ''}",
        "measured": len(failed),
        "target": 0,
        "unit": "",
        "ok": not failed,
    }
    explained = [one.number for one in chosen if one.report.passed and one.report.gradient_rounding]
    yield {
        "name": f"above the tolerance by rounding alone, gradients {gradients} {explained or ''}",
        "measured": len(explained),
        "target": None,
        "unit": "",
        "ok": True,
    }
    for what in ("loss", "gradient", "weight"):
        worst = max(getattr(one.report, f"max_{what}_difference") for one in chosen)
        yield {
            "name": f"worst {what} difference, gradients {gradients}, in 1e-6",
            "measured": 1e6 * worst,
            "target": 10,
            "unit": "",
            "ok": worst <= 1e-5 or not failed,
        }


def main() -> None:
    """Verify and print a line each, then the table."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else NUMBER
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    drawn: list[Drawn] = []
    for one in run(range(first, first + number)):
        drawn.append(one)
        report = one.report
        outcome = "ok" if report.passed else f"FAILED {report.verdict}"
        if report.passed and report.gradient_rounding:
            outcome = f"ok by rounding: {report.verdict}"
        print(
            f"{one.number} {one.seconds:.1f} s, {one.config.model.deployment_mode}, clip_grad "
            f"{one.config.runtime.clip_grad:g}: {report.max_loss_difference:.1e} "
            f"{report.max_gradient_difference:.1e} {report.max_weight_difference:.1e} {outcome}",
            flush=True,
        )
    show("Drawn layouts against one process", rows(drawn))


if __name__ == "__main__":
    main()
