"""Steps over samples, predicted and measured: `python -m benchmarks.over_samples [MACHINE.json]`.

Digits with 0 to 16 scans on four ranks of a CPU, in all modes and under four policies. Seconds are
CPU seconds of the slowest rank of each step, so that other work on the machine counts little. Runs
of two other mixes, as drawn and packed, give the line between predicted and measured seconds: one
constant per kind of rank, and a factor per module. The mix and the batches that are judged are held
out, and so are balanced order and balanced frames.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Iterator
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

RANKS, STEPS, WARMUP = 4, 24, 2
PRODUCTS, PROBE = 40, 0.03
"""Products before each step, and the CPU seconds that they count for."""
MACHINE = Path("this-machine.json")
TARGET = 15.0
"""Percent of p50 and p95."""
MODES: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "homogeneous": ({"data_parallel": 4}, {"data_parallel": 4}),
    "colocated": ({"data_parallel": 4}, {"tensor_parallel": 2, "data_parallel": 2}),
    "heterogeneous": ({"data_parallel": 2}, {"data_parallel": 2, "rank_offset": 2}),
}
"""Mode -> sizes of the encoder and of the language model."""
GIVEN = (tuple(range(9)), (1,))
HELD_OUT = (0,) * 10 + (1,) * 6 + (2, 3, 4, 8) + (16,) * 3
"""Numbers of scans, each equally likely."""


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
        return TrainingData("drawn digits", Strips("train", size=20_000, seed=self.seed), collate)


def config_of(mode: str, policy: Policy) -> ExperimentConfig:
    """Return the experiment of a mode whose run does what a policy says."""
    images, language = MODES[mode]
    return config_from_mapping(
        {
            "name": "digits",
            "model": {
                "deployment_mode": mode,
                "module_architectures": {
                    "images": {
                        "num_layers": 4, "hidden_size": 384, "num_attention_heads": 4,
                        "vocab_size": 0, "image_size": 8, "patch_size": 4, "merge_size": 2,
                    },
                    "language_module": {
                        "num_layers": 1, "hidden_size": 128, "num_attention_heads": 4,
                        "seq_length": 64, "vocab_size": 16,
                    },
                },
                "module_parallelisms": {"images": images, "language_module": language},
                "special_token_ids": {"images": 16},
            },
            "data": {
                "base_batch_size": 16 // language["data_parallel"],
                "num_microbatches": 2,
                "seq_length": 64,
                "image_seq_length": 16,
                "vocab_size": 16,
                "image_special_token_id": 16,
                "dataset_size": 20_000,
                "pack_sequences_in_batch": policy.packing == "row",
            },
            "runtime": {
                "sample_order": policy.order,
                "patch_type": ["vit_frame_parallel"] if policy.shared_frames else [],
            },
        }
    )  # fmt: skip


def rank_seconds(plan: Any, config: ExperimentConfig, source: DrawnDigits) -> list[float]:
    """Return the CPU seconds of this rank in each step, in those of a core that shares nothing.

    Products of a fixed size before each step say how slow the core is at the time.
    """
    import torch

    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.loop import prepared, training_step

    left, right = torch.ones(64, 384), torch.ones(384, 1536)

    def probed() -> float:
        begin = time.process_time()
        for _ in range(PRODUCTS):
            torch.relu(left @ right)
        return time.process_time() - begin

    seconds, probes = [], []
    with prepared(plan, config, source) as state:
        for _ in range(WARMUP + STEPS):
            probes.append(probed())
            begin = time.process_time()
            exhaust(training_step(state))
            seconds.append(time.process_time() - begin)
    slow = statistics.median(probes) / PROBE
    return [each / slow for each in seconds[WARMUP:]]


def terms(task: PredictionTask, policy: Policy) -> np.ndarray:
    """Return what a line is fitted of: constants and modules, [batches, ranks, terms]."""
    (known,) = predict_samples(task, [policy]).policies
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


def judged(cluster: EngineCluster, machine: Path, mode: str) -> Iterator[dict[str, Any]]:
    """Yield the errors of p50 and p95 of each policy."""

    def both(policy: Policy, lengths: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        config = config_of(mode, policy)
        mix = mimokit.measure(config, 2000, data=DrawnDigits(lengths, seed=7))
        task = task_of(config, gpu=machine)
        known = replace(task, workload=replace(task.workload, mix=mix))
        plan = mimokit.plan(config)
        seconds = cluster.run(rank_seconds, plan, config, DrawnDigits(lengths), world_size=RANKS)
        return terms(known, policy), np.array(seconds).T

    pairs = [both(*each) for each in itertools.product((POLICIES[0], POLICIES[3]), GIVEN)]
    left = np.concatenate([known.mean(axis=0) for known, _ in pairs])
    right = np.concatenate([np.median(seconds, axis=0) for _, seconds in pairs])
    line, *_ = np.linalg.lstsq(left, right, rcond=None)
    for policy in POLICIES:
        known, seconds = both(policy, HELD_OUT)
        foreseen, seen = (known @ line).max(axis=1), seconds.max(axis=1)
        for quantile in (0.5, 0.95):
            said, was = np.quantile(foreseen, quantile), np.quantile(seen, quantile)
            error = 100 * float(said / was - 1)
            name = f"{mode}, {policy}, p{100 * quantile:.0f}: {1e3 * said:.0f}, {1e3 * was:.0f} ms"
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
        return [row for mode in MODES for row in judged(cluster, machine, mode)]


def main() -> None:
    """Print the measurements."""
    show("Steps over samples", rows())


if __name__ == "__main__":
    main()
