"""What frame parallel saves on uneven batches: `python -m benchmarks.frame_parallel`.

Two ranks with one thread each train the digits model on strips of 1 to 64 scans, as videos of so
many frames. Steps of all kinds alternate in one run: with and without frame parallel on uneven
batches, and steps that calibrate. The prediction knows the frames of every sample. What a frame
costs the encoder is fitted to steps without frame parallel on other numbers of frames; a time that
no frame causes is no part of it. What frame parallel itself costs is measured as well: planning the
same frames, and sending them at the cost of calls without an encoder. Times are CPU times of the
ranks' threads, which wait asleep, unless a row says otherwise: wall-clock times mean something only
on two cores that do nothing else.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

import mimokit
from benchmarks.frame_cost import fit_cost
from benchmarks.table import show
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.config.runtime import FRAME_PARALLEL
from mimokit.engine.data.digits import END_TOKEN, READ_TOKEN, DigitCollate, DigitSample, load_scans
from mimokit.engine.data.iterators import place_of
from mimokit.engine.data.sources import TrainingData
from mimokit.planning.frames import FrameCost, FrameSettings, plan_frames
from mimokit.planning.frames.routing import TOLERANCE
from tests.layouts import IMAGE_TOKEN, digits_config

RANKS, PAIRS, WARMUP = 2, 12, 2
UNEVEN = (64, 64, 48, 32, 8, 4, 2, 1)
UNIFORM = (8,) * 8
CALIBRATING = ((24, 16, 12, 8, 4, 2, 2, 1), (64, 56, 48, 22, 40, 25, 20, 10))
"""Frames of the samples of a micro-batch; each rank reads half of them."""
WAYS = ("without", "with")
Kind = tuple[str, tuple[int, ...]]
"""One of the ways, and frames."""


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
        collate = DigitCollate(config.data.seq_length, [IMAGE_TOKEN], 1)
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


def measure(plan: Any, kinds: tuple[Kind, ...]) -> dict[Kind, list[tuple[float, ...]]]:
    """Return seconds per kind: step of the slowest rank, own encoder, own layers, step by clock."""
    import torch.distributed as dist

    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.training.optimizer_step import prepare, training_step

    runs = {kind: RunOfRank(plan, config_of(kind[0]), VideoData(kind[1])) for kind in kinds}
    states = {kind: prepare(run) for kind, run in runs.items()}
    clocks = {kind: _clock_layers(state) for kind, state in states.items()}
    found: dict[Kind, list[tuple[float, ...]]] = {kind: [] for kind in kinds}
    for _ in range(WARMUP + PAIRS):
        for kind, state in states.items():
            clocks[kind][0] = 0.0
            dist.barrier()
            began = time.thread_time(), time.perf_counter()
            encoder = _encoder_seconds(training_step(state))
            taken = torch.tensor([time.thread_time() - began[0], time.perf_counter() - began[1]])
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            cpu, clock = taken.tolist()
            found[kind].append((cpu, encoder, clocks[kind][0], clock))
    return {kind: steps[WARMUP:] for kind, steps in found.items()}


def dispatch_seconds(frames: tuple[int, ...]) -> float:
    """Return the seconds of a dispatch there and back, and of its gradient, without an encoder."""
    import torch.distributed as dist

    from mimokit.engine.frames import input_dispatch, output_dispatch

    group, merge, patches = dist.group.WORLD, 2, 4
    assert group is not None
    own = _per_rank(frames)[dist.get_rank()]
    grid, times = torch.tensor([[1, merge, merge]]).repeat(own, 1), []
    settings = FrameSettings(merge, FrameCost(per_patch=0.0, per_frame=1.0))
    for _ in range(WARMUP + PAIRS):
        pixels, weight = torch.zeros(own * patches, 16), torch.ones(64, requires_grad=True)
        dist.barrier()
        began = time.thread_time()
        (given, _), context = input_dispatch(pixels, grid, group=group, settings=settings)
        (tokens,) = output_dispatch(context, [given.reshape(-1, 64) * weight], [merge**2])
        tokens.sum().backward()
        taken = torch.tensor(time.thread_time() - began)
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)
        times.append(float(taken))
    return statistics.median(times[WARMUP:])


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
    judged = [(way, frames) for frames in (UNEVEN, UNIFORM) for way in WAYS]
    kinds = (*judged, *(("without", frames) for frames in CALIBRATING))
    with EngineCluster(n=RANKS, progress=False) as cluster:
        ranks = cluster.run(measure, plan, kinds, world_size=RANKS)
        sending = cluster.run(dispatch_seconds, UNEVEN, world_size=RANKS)[0]
    read = _per_rank(UNEVEN)
    cost = _calibrated(ranks)
    home = [rank for rank, frames in enumerate(read) for _ in range(frames)]
    shared = plan_frames([1] * sum(read), RANKS, home=home, tolerance=TOLERANCE)
    predicted = (max(read) - shared.makespan) * cost - sending
    without, with_ = (ranks[0][way, UNEVEN] for way in WAYS)
    measured = statistics.median(a[0] - b[0] for a, b in zip(without, with_, strict=True))
    text = f"{read[0]} and {read[1]} frames on {RANKS} ranks"
    uniform = zip(*(ranks[0][way, UNIFORM] for way in WAYS), strict=True)
    return [
        _row(
            f"{text}: layers of the slowest encoder over the mean, without",
            _imbalance(ranks, "without"),
            None,
            "",
        ),
        _row(f"{text}: the same, with", _imbalance(ranks, "with"), 1.15, ""),
        _row(f"{text}: step without", 1e3 * statistics.median(s[0] for s in without), None, "ms"),
        _row(f"{text}: step with", 1e3 * statistics.median(s[0] for s in with_), None, "ms"),
        _row(f"{text}: dispatch and its plan", 1e3 * sending, None, "ms"),
        _row(f"{text}: step saved", 1e3 * measured, None, "ms"),
        _row(
            f"{text}: saving predicted ({1e3 * predicted:.0f} ms) against measured",
            100 * abs(predicted / measured - 1),
            15.0,
            "% off",
        ),
        _row(
            f"{text}: step by the clock, with over without",
            statistics.median(b[3] / a[3] for a, b in zip(without, with_, strict=True)),
            None,
            "",
        ),
        _row(
            "uniform frames: step with, over without",
            statistics.median(b[0] / a[0] for a, b in uniform),
            None,
            "",
        ),
    ]


def _per_rank(frames: tuple[int, ...]) -> list[int]:
    each = len(frames) // RANKS
    return [sum(frames[rank * each : (rank + 1) * each]) for rank in range(RANKS)]


def _calibrated(ranks: list[dict[Kind, list[tuple[float, ...]]]]) -> float:
    """Return the seconds of a frame in the encoder, fitted to other numbers of frames."""
    calls, seconds = [], []
    for frames in CALIBRATING:
        for rank, own in enumerate(_per_rank(frames)):
            calls.append([1] * own)
            seconds.append(statistics.median(step[1] for step in ranks[rank]["without", frames]))
    return float(fit_cost(calls, seconds).loads([1])[0])


def _imbalance(ranks: list[dict[Kind, list[tuple[float, ...]]]], way: str) -> float:
    layers = [statistics.median(one[2] for one in rank[way, UNEVEN]) for rank in ranks]
    return max(layers) / statistics.mean(layers)


def _row(name: str, measured: float, target: float | None, unit: str) -> dict[str, Any]:
    ok = target is None or measured <= target
    return {"name": name, "measured": measured, "target": target, "unit": unit, "ok": ok}


if __name__ == "__main__":
    show("Frame parallel", rows())
