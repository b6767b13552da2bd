"""Steps over samples, predicted and measured: `python -m benchmarks.over_samples [MACHINE.json]`.

Digits with 0 to 16 scans, and 0 to 8 spoken digits of uneven length, on four ranks of a CPU, in
all modes and under all policies: frames of scans alone can be shared. Seconds are CPU seconds of
the slowest rank of each step, so that other work on the machine counts little. Runs of two other
mixes, as drawn and packed, give the line between predicted and measured seconds: one constant per
kind of rank, and a factor per module. The mix and the batches that are judged are held out, and so
are balanced order and balanced frames.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import mimokit
from benchmarks.table import show
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.config_files import config_from_mapping
from mimokit.prediction.over_samples import POLICIES, Policy, predict_samples
from mimokit.prediction.task import PredictionTask, task_of

RANKS, STEPS, WARMUP = 4, 64, 2
DRAWN = 512
"""Batches of a prediction. By chance p95 of 24 steps of these mixes is off by 7 % (one standard
deviation), of 64 steps by 5 %; that of what is predicted should add nothing."""
PRODUCTS, PROBE = 40, 0.03
"""Products before each step, and the CPU seconds that they count for."""
MACHINE = Path("this-machine.json")
TARGET = 15.0
"""Percent of p50 and p95."""
DATA = 20_000
SPOKEN = 8
"""Recordings of each digit, which are drawn once: distorting them would take much of a step."""
MODES: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "homogeneous": ({"data_parallel": 4}, {"data_parallel": 4}),
    "colocated": ({"data_parallel": 4}, {"tensor_parallel": 2, "data_parallel": 2}),
    "heterogeneous": ({"data_parallel": 2}, {"data_parallel": 2, "rank_offset": 2}),
}
"""Mode -> sizes of the encoder and of the language model."""


@dataclass(frozen=True)
class DrawnDigits:
    """Strips whose numbers of scans are drawn."""

    lengths: tuple[int, ...]
    seed: int = 0

    def __call__(self, config: ExperimentConfig) -> Any:
        from mimokit.engine.data.digits import DigitCollate, DigitStrips
        from mimokit.engine.data.multimodal import encoder_inputs
        from mimokit.engine.data.sources import TrainingData

        lengths = self.lengths

        class Strips(DigitStrips):
            def _length(self, index: int) -> tuple[np.random.Generator, int]:
                generator = np.random.default_rng((self.seed, index))
                return generator, int(generator.choice(lengths))

        (images,) = encoder_inputs(config)
        collate = DigitCollate(config.data.seq_length, images.placeholders, images.geometry.tokens)
        return TrainingData("drawn digits", Strips("train", size=DATA, seed=self.seed), collate)


@dataclass(frozen=True)
class DrawnSpeech:
    """Spoken digits whose number is drawn, as are their speeds and so their lengths."""

    lengths: tuple[int, ...]
    seed: int = 0

    def __call__(self, config: ExperimentConfig) -> Any:
        import torch

        from mimokit.architecture.tokens import AudioGeometry
        from mimokit.engine.data.multimodal import MultimodalSample, encoder_inputs
        from mimokit.engine.data.sources import MultimodalDigitData, TrainingData
        from mimokit.engine.data.speech import log_mel, padded, speak
        from mimokit.planning.frames import SampleSizes

        lengths, seed = self.lengths, self.seed
        (audio,) = encoder_inputs(config)
        shape = audio.geometry
        assert isinstance(shape, AudioGeometry)

        @functools.cache
        def spoken(digit: int, number: int) -> tuple[torch.Tensor, int]:
            frames = log_mel(speak(digit, np.random.default_rng(number)), shape.mel_bins)
            return padded(frames, shape.frames), shape.tokens_of(frames.shape[1])

        class Speech(torch.utils.data.Dataset[MultimodalSample]):
            def __len__(self) -> int:
                return DATA

            def sample_sizes(self, index: int) -> SampleSizes:
                return SampleSizes({"audio": len(self._said(index)[0])})

            def _said(self, index: int) -> tuple[np.ndarray, np.ndarray]:
                generator = np.random.default_rng((seed, index))
                count = int(generator.choice(lengths))
                return generator.integers(0, 10, count), generator.integers(0, SPOKEN, count)

            def __getitem__(self, index: int) -> MultimodalSample:
                digits, numbers = self._said(index)
                heard = [
                    spoken(*each) for each in zip(digits.tolist(), numbers.tolist(), strict=True)
                ]
                words = torch.tensor([11, *digits.tolist(), 10])
                items = torch.stack([each for each, _ in heard]) if heard else audio.no_items()
                return MultimodalSample(
                    items={"audio": items},
                    tokens={"audio": torch.tensor([each for _, each in heard], dtype=torch.int64)},
                    grids={"audio": torch.zeros(0, 3, dtype=torch.int64)},
                    words=words,
                    learned=torch.tensor([0.0] + [1.0] * (len(words) - 1)),
                )

        collate = MultimodalDigitData()(config).collate_fn
        return TrainingData("drawn speech", Speech(), collate)


@dataclass(frozen=True)
class Case:
    """A modality.

    Attributes:
        network: of its encoder.
        tokens: of a sequence, and of its inputs in it.
        given, held_out: numbers of items of a sample, each equally likely.
    """

    encoder: str
    network: Mapping[str, int]
    tokens: tuple[int, int]
    drawn: Callable[[tuple[int, ...]], DrawnDigits | DrawnSpeech]
    held_out: tuple[int, ...]
    policies: Sequence[Policy]
    given: tuple[tuple[int, ...], ...] = (tuple(range(9)), (1,))


CASES = (
    Case(
        "images",
        {"hidden_size": 384, "image_size": 8, "patch_size": 4, "merge_size": 2},
        (64, 16),
        DrawnDigits,
        (0,) * 10 + (1,) * 6 + (2, 3, 4, 8) + (16,) * 3,
        POLICIES,
    ),
    Case(
        "audio",
        {"hidden_size": 192, "seq_length": 24, "mel_bins": 20, "merge_size": 4},
        (64, 48),
        DrawnSpeech,
        (0,) * 10 + (1,) * 6 + (2, 3, 4) + (8,) * 3,
        [policy for policy in POLICIES if not policy.shared_frames],
    ),
)


def config_of(case: Case, mode: str, policy: Policy) -> ExperimentConfig:
    """Return the experiment of a mode whose run does what a policy says."""
    encoder, language = MODES[mode]
    sequence, inputs = case.tokens
    return config_from_mapping(
        {
            "name": "digits",
            "model": {
                "deployment_mode": mode,
                "module_architectures": {
                    case.encoder: {
                        "num_layers": 4, "num_attention_heads": 4, "vocab_size": 0, **case.network,
                    },
                    "language_module": {
                        "num_layers": 1, "hidden_size": 128, "num_attention_heads": 4,
                        "seq_length": sequence, "vocab_size": 16,
                    },
                },
                "module_parallelisms": {case.encoder: encoder, "language_module": language},
                "special_token_ids": {case.encoder: 16},
            },
            "data": {
                "base_batch_size": 16 // language["data_parallel"],
                "num_microbatches": 2,
                "seq_length": sequence,
                "image_seq_length": inputs,
                "modality_seq_lengths": {case.encoder: inputs},
                "vocab_size": 16,
                "dataset_size": DATA,
                "pack_sequences_in_batch": policy.packing == "row",
            },
            "runtime": {
                "sample_order": policy.order,
                "patch_type": ["vit_frame_parallel"] if policy.shared_frames else [],
            },
        }
    )  # fmt: skip


def rank_seconds(plan: Any, config: ExperimentConfig, source: Any) -> list[float]:
    """Return the CPU seconds of this rank in each step, in those of a core that shares nothing.

    Products of a fixed size before each step say how slow the core is at the time.
    """
    import torch

    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.optimizer_step import prepared, training_step

    left, right = torch.ones(64, 384), torch.ones(384, 1536)

    def probed() -> float:
        begin = time.process_time()
        for _ in range(PRODUCTS):
            torch.relu(left @ right)
        return time.process_time() - begin

    seconds, probes = [], []
    with prepared(RunOfRank(plan, config, source)) as state:
        for _ in range(WARMUP + STEPS):
            probes.append(probed())
            begin = time.process_time()
            exhaust(training_step(state))
            seconds.append(time.process_time() - begin)
    slow = statistics.median(probes) / PROBE
    return [each / slow for each in seconds[WARMUP:]]


def terms(task: PredictionTask, policy: Policy) -> np.ndarray:
    """Return what a line is fitted of: constants and modules, [batches, ranks, terms]."""
    (known,) = predict_samples(task, [policy], batches=DRAWN).policies
    batches, apart = len(known.seconds), task.layout.mode == "heterogeneous"
    each = RANKS // 2 if apart else RANKS
    modules = []
    for place, (name, work) in enumerate(known.work.items()):
        replicas = int(task.layout.modules[name].data)
        whole = np.broadcast_to(work, (batches, replicas))
        own = np.repeat(whole, each // replicas, axis=1)
        none = np.zeros((batches, RANKS - each))
        modules.append(np.hstack([own, none] if place == 0 else [none, own]))
    second = np.broadcast_to(np.arange(RANKS) >= RANKS // 2, modules[0].shape).astype(float)
    constants = [1 - second, second] if apart else [np.ones(modules[0].shape)]
    return np.stack([*constants, *modules], axis=-1)


def judged(
    cluster: EngineCluster, machine: Path, case: Case, mode: str
) -> Iterator[dict[str, Any]]:
    """Yield the errors of p50 and p95 of each policy."""

    def both(policy: Policy, lengths: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        config = config_of(case, mode, policy)
        mix = mimokit.measure(config, 2000, data=replace(case.drawn(lengths), seed=7))
        task = task_of(config, gpu=machine)
        known = replace(task, workload=replace(task.workload, mix=mix))
        plan = mimokit.plan(config)
        seconds = cluster.run(rank_seconds, plan, config, case.drawn(lengths), world_size=RANKS)
        return terms(known, policy), np.array(seconds).T

    pairs = [both(*each) for each in itertools.product((POLICIES[0], POLICIES[3]), case.given)]
    left = np.concatenate([known.mean(axis=0) for known, _ in pairs])
    right = np.concatenate([np.median(seconds, axis=0) for _, seconds in pairs])
    line, *_ = np.linalg.lstsq(left, right, rcond=None)
    for policy in case.policies:
        known, seconds = both(policy, case.held_out)
        foreseen, seen = (known @ line).max(axis=1), seconds.max(axis=1)
        for quantile in (0.5, 0.95):
            said, was = np.quantile(foreseen, quantile), np.quantile(seen, quantile)
            error = 100 * float(said / was - 1)
            name = f"{case.encoder}, {mode}, {policy}, p{100 * quantile:.0f}"
            name += f": {1e3 * said:.0f}, {1e3 * was:.0f} ms"
            yield {
                "name": name,
                "measured": error,
                "target": TARGET,
                "unit": "%",
                "ok": abs(error) <= TARGET,
            }


def rows() -> list[dict[str, Any]]:
    """Measure the errors of predictions in all modes."""
    machine = next((Path(word) for word in sys.argv[1:] if word.endswith(".json")), MACHINE)
    with EngineCluster(n=RANKS, progress=False) as cluster:
        if not machine.exists():
            mimokit.calibrate(cluster, machine)
        return [
            row
            for case, mode in itertools.product(CASES, MODES)
            for row in judged(cluster, machine, case, mode)
        ]


def main() -> None:
    """Print the measurements."""
    show("Steps over samples", rows())


if __name__ == "__main__":
    main()
