"""What frame parallel saves on uneven batches: `python -m tests.benchmarks.frame_parallel`.

Two ranks with one thread each train the digits model on strips of 1 to 64 scans, as videos of so
many frames. Steps with and without frame parallel alternate in one run. The prediction knows the
frames of every sample, and what a frame costs the encoder from the steps without. Times are CPU
times of the ranks' threads, which wait asleep, unless a row says otherwise: wall-clock times mean
something only on two cores that do nothing else.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

import mimokit
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.config.runtime import FRAME_PARALLEL
from mimokit.engine.data.digits import END_TOKEN, READ_TOKEN, DigitCollate, DigitSample, load_scans
from mimokit.engine.data.iterators import place_of
from mimokit.engine.data.sources import TrainingData
from mimokit.planning.frames import plan_frames
from tests.benchmarks.table import show
from tests.layouts import IMAGE_TOKEN, digits_config

RANKS, PAIRS, WARMUP = 2, 12, 2
UNEVEN = (64, 64, 48, 32, 8, 4, 2, 1)
UNIFORM = (8,) * 8
"""Frames of the samples of a micro-batch; each rank reads half of them."""
WAYS = ("without", "with")


class Videos(Dataset[DigitSample]):
    """Strips whose number of scans depends on their place in the micro-batch."""

    def __init__(self, frames: tuple[int, ...]) -> None:
        self._frames = frames

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> DigitSample:
        images, digits = load_scans("train")
        begin = index % (len(images) - max(self._frames))
        frames = self._frames[place_of(index)[1]]
        answer = [int(digits[begin]), END_TOKEN]
        return DigitSample(
            images=images[begin : begin + frames], question=[READ_TOKEN], answer=answer
        )


@dataclass(frozen=True)
class VideoData:
    """Training data of such strips, one token per frame."""

    frames: tuple[int, ...]

    def __call__(self, config: ExperimentConfig) -> TrainingData:
        collate = DigitCollate(config.data.seq_length, IMAGE_TOKEN, 1)
        return TrainingData("videos of digits", Videos(self.frames), collate)


def config_of(way: str) -> ExperimentConfig:
    """Return the digits model with an encoder that takes most of the time."""
    config = digits_config((1, RANKS), (1, RANKS), num_iterations=1)
    networks = config.model.module_architectures
    networks["images"] = networks["images"].model_copy(
        update={"hidden_size": 256, "num_layers": 4, "merge_size": 2}
    )
    networks["language_module"] = networks["language_module"].model_copy(update={"seq_length": 72})
    config.data.seq_length, config.data.image_seq_length = 72, 64
    config.runtime.patch_type = [FRAME_PARALLEL] if way == "with" else []
    return config


def measure(plan: Any, frames: tuple[int, ...]) -> dict[str, list[tuple[float, ...]]]:
    """Return seconds per way: step of the slowest rank, own encoder, own layers, step by clock."""
    import torch.distributed as dist

    from mimokit.engine.training.loop import prepare, training_step

    states = {way: prepare(plan, config_of(way), VideoData(frames)) for way in WAYS}
    clocks = {way: _clock_layers(state) for way, state in states.items()}
    found: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    for _ in range(WARMUP + PAIRS):
        for way, state in states.items():
            clocks[way][0] = 0.0
            dist.barrier()
            began = time.thread_time(), time.perf_counter()
            encoder = _encoder_seconds(training_step(state))
            taken = torch.tensor([time.thread_time() - began[0], time.perf_counter() - began[1]])
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            cpu, clock = taken.tolist()
            found[way].append((cpu, encoder, clocks[way][0], clock))
    return {way: steps[WARMUP:] for way, steps in found.items()}


def _encoder_seconds(steps: Any) -> float:
    """Run a step; return the seconds of the encoder's forward and backward."""
    from mimokit.engine.steps import exhaust

    total, last = 0.0, [None, 0.0]

    def observe(step: Any) -> None:
        nonlocal total
        now = time.thread_time()
        if last[0] is not None:
            total += now - last[1]
        encodes = step.module == "images" and step.name in ("forward", "backward")
        last[:] = [step if encodes else None, now]

    exhaust(steps, observe)
    return total


def _clock_layers(state: Any) -> list[float]:
    """Add up the seconds of the forward of the encoder's layers."""
    layers = state.model.modules()["images"].module.encoders["vit_encoder"].decoder
    forward, total = layers.forward, [0.0]

    def timed(*given: Any, **named: Any) -> Any:
        began = time.thread_time()
        output = forward(*given, **named)
        total[0] += time.thread_time() - began
        return output

    layers.forward = timed
    return total


def rows() -> list[dict[str, Any]]:
    """Return the figures of the table."""
    plan = mimokit.plan(config_of("without"))
    with EngineCluster(n=RANKS, progress=False) as cluster:
        uneven = cluster.run(measure, plan, UNEVEN, world_size=RANKS)
        uniform = cluster.run(measure, plan, UNIFORM, world_size=RANKS)
    per_rank = [sum(UNEVEN[: len(UNEVEN) // 2]), sum(UNEVEN[len(UNEVEN) // 2 :])]
    frames = [1] * sum(per_rank)
    balanced = plan_frames(frames, RANKS, home=[0] * per_rank[0] + [1] * per_rank[1])
    slowest = statistics.median(step[1] for step in uneven[0]["without"])
    predicted = slowest * (1 - balanced.makespan / max(per_rank))
    measured = _saved(uneven)
    text = f"{per_rank[0]} and {per_rank[1]} frames on {RANKS} ranks"
    before, after = (_imbalance(uneven, way) for way in WAYS)
    step = statistics.median(step[0] for step in uneven[0]["without"])
    clock = statistics.median(
        with_[3] / without[3]
        for without, with_ in zip(uneven[0]["without"], uneven[0]["with"], strict=True)
    )
    return [
        _row(f"{text}: layers of the slowest encoder over the mean, without", before, None, ""),
        _row(f"{text}: the same, with", after, 1.15, ""),
        _row(f"{text}: step without", 1e3 * step, None, "ms"),
        _row(f"{text}: step saved", 1e3 * measured, None, "ms"),
        _row(
            f"{text}: saving predicted ({1e3 * predicted:.0f} ms) against measured",
            100 * abs(predicted / measured - 1),
            15.0,
            "% off",
        ),
        _row(f"{text}: step by the clock, with over without", clock, None, ""),
        _row(
            "uniform frames: step with, over without",
            statistics.median(
                with_[0] / without[0]
                for without, with_ in zip(uniform[0]["without"], uniform[0]["with"], strict=True)
            ),
            None,
            "",
        ),
    ]


def _saved(ranks: list[dict[str, list[tuple[float, ...]]]]) -> float:
    pairs = zip(ranks[0]["without"], ranks[0]["with"], strict=True)
    return statistics.median(without[0] - with_[0] for without, with_ in pairs)


def _imbalance(ranks: list[dict[str, list[tuple[float, ...]]]], way: str) -> float:
    layers = [statistics.median(one[2] for one in rank[way]) for rank in ranks]
    return max(layers) / statistics.mean(layers)


def _row(name: str, measured: float, target: float | None, unit: str) -> dict[str, Any]:
    ok = target is None or measured <= target
    return {"name": name, "measured": measured, "target": target, "unit": unit, "ok": ok}


if __name__ == "__main__":
    show("Frame parallel", rows())
