"""Saving and loading: kills, per gigabyte, the step that saves, a killed rank, strategies, layouts.

`python -m benchmarks.checkpoints [--pairs N]`. A pair is a run that is saved under one layout
and goes on under another; wrong are those of which `mimokit verify --resume-check` finds anything.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.table import show
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig, StrategyConfig
from mimokit.engine.checkpoints.files import read_whole, sync, write_files
from mimokit.experiment import resume_check, train
from mimokit.planning.checkpoint_files import changed_files
from mimokit.planning.checkpoints import Checkpoint, DataPosition, file_of_rank
from mimokit.samples import StepSample
from tests.engine.checkpoints.test_killed import kill_while_saving
from tests.layouts import digits_config

RANKS, PAIRS, REPEATS, KILLS = 4, 200, 3, 100
TENSORS, ENTRIES = 16, 2**23
"""16 tensors of 32 MiB: half a gigabyte."""
INTERVAL, ITERATIONS = 10, 80
STRATEGIES: tuple[dict[str, Any], ...] = (
    {"name": "simple_reduce"},
    {"name": "fedavg", "H": 2},
    {"name": "sparta", "p_sparta": 0.1, "delay": 2},
    {"name": "diloco", "H": 2},
)
MOST_OF_A_STEP, MOST_SECONDS = 1.25, 20.0


def rows(pairs: int = PAIRS) -> Iterator[dict[str, Any]]:
    """Yield the figures of the table."""
    with tempfile.TemporaryDirectory() as folder:
        kill_while_saving(Path(folder), KILLS)  # raises where a checkpoint is lost
    yield _row(f"checkpoints lost by kill -9 at {KILLS} random moments of saving", 0, 0, "")
    yield from _per_gigabyte()
    with EngineCluster(n=RANKS) as cluster, tempfile.TemporaryDirectory() as folder:
        ratio = step_that_saves(cluster, Path(folder) / "saves")
        yield _row("the step that saves / the others", ratio, MOST_OF_A_STEP, "")
        lost = seconds_after_a_kill(cluster, Path(folder) / "killed")
        yield _row("a killed rank to the next step", lost, MOST_SECONDS, "s")
        wrong = sum(map(bool, resumed_strategies(cluster)))
        yield _row(f"wrong of {len(STRATEGIES)} strategies between replicas", wrong, 0, "")
        wrong = sum(map(bool, drawn_pairs(cluster, pairs)))
        yield _row(f"wrong of {pairs} drawn pairs of layouts", wrong, 0, "")


def _row(name: str, measured: float, target: float | None, unit: str) -> dict[str, Any]:
    reached = target is None or measured <= target
    return {"name": name, "measured": measured, "target": target, "unit": unit, "ok": reached}


def _seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def _per_gigabyte() -> Iterator[dict[str, Any]]:
    """Yield seconds per GB of one process, with fsync, and torch's own next to them."""
    state = {f"weights/m/{number}": torch.randn(ENTRIES) for number in range(TENSORS)}
    gigabytes = TENSORS * ENTRIES * 4 / 1e9
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, plain = Path(name), Path(name) / "plain.pt"
        blocks = {name: ((0,), tensor) for name, tensor in state.items()}

        def saved_by_torch() -> None:
            torch.save(state, plain)
            sync(plain)

        shapes = dict.fromkeys(state, (ENTRIES,))
        data = DataPosition("", 1, 1, 1, 1)
        digests = write_files(folder, 0, [blocks])
        files = {file_of_rank(0, 0): 0}
        whole = Checkpoint(folder, 1, {}, shapes, files, data, {}, digests=digests)
        measures: dict[str, Callable[[], object]] = {
            "save": lambda: write_files(folder, 0, [blocks]),
            "save by torch.save": saved_by_torch,
            "compare with what was saved": lambda: changed_files(whole, files),
            "load": lambda: read_whole(whole, state),
            "load by torch.load": lambda: torch.load(plain, weights_only=True),
        }
        for _ in range(REPEATS):
            for what, function in measures.items():
                seconds.setdefault(what, []).append(_seconds(function) / gigabytes)
    for what, taken in seconds.items():
        yield _row(what, statistics.median(taken), None, "s/GB")


def step_that_saves(cluster: EngineCluster, folder: Path) -> float:
    """Return the median time of steps that save in terms of that of the others."""
    config = digits_config((1, 4), (2, 2), num_iterations=ITERATIONS)
    steps = train(cluster, config, directory=folder, checkpoints=INTERVAL).result().steps
    times = steps[steps["iteration"] >= INTERVAL].groupby("iteration")["total_time"].max()
    saving = (times.index + 1) % INTERVAL == 0
    return float(times[saving].median() / times[~saving].median())


def seconds_after_a_kill(cluster: EngineCluster, folder: Path) -> float:
    """Return the time from the end of a rank's process until the next step is complete."""
    process = cluster.run(os.getpid)[1]
    config = digits_config((1, 4), (2, 2), num_iterations=ITERATIONS)
    run = train(cluster, config, directory=folder, checkpoints=INTERVAL, restarts=1)
    times: list[float] = []

    def hear(sample: object) -> None:
        if isinstance(sample, StepSample) and sample.iteration >= ITERATIONS // 2:
            if not times:
                os.kill(process, signal.SIGKILL)
                times.append(time.time())
            elif run.restarts and len(times) == 1:
                times.append(time.time())

    run.on_sample(hear)
    run.result()
    return times[1] - times[0]


def resumed_strategies(cluster: EngineCluster) -> Iterator[tuple[str, ...]]:
    """Yield what is found to be wrong of replicas under each strategy, bit for bit."""
    for arguments in STRATEGIES:
        config = digits_config((2, 1), (2, 1), num_microbatches=2)
        config.strategy = StrategyConfig(**arguments, replicas=2)
        report = resume_check(cluster, config)
        if not report.passed:
            print(config.strategy.name, report.verdict, flush=True)
        yield report.findings


def drawn_pairs(cluster: EngineCluster, pairs: int) -> Iterator[tuple[str, ...]]:
    """Yield what is found to be wrong of each of so many pairs of layouts."""
    draw, wrong = random.Random(0), 0
    for number in range(1, pairs + 1):
        saved, resumed = (_drawn(draw) for _ in range(2))
        report = resume_check(cluster, saved, into=resumed)
        if not report.passed:
            wrong += 1
            print(report.saved_layout, "->", report.layout, report.verdict, flush=True)
        print(f"{number} of {pairs} pairs of layouts: {wrong} wrong", flush=True)
        yield report.findings


def _drawn(draw: random.Random) -> ExperimentConfig:
    ranks = draw.choice([1, 2, 4])
    sizes = [(tensor, ranks // tensor) for tensor in (1, 2, 4) if ranks % tensor == 0]
    mode = draw.choice(["homogeneous", "colocated", "heterogeneous"])
    first, second = draw.choice(sizes), draw.choice(sizes)
    config = digits_config(first, first if mode == "homogeneous" else second, num_microbatches=2)
    if mode != "heterogeneous":
        sharded = bool(draw.getrandbits(1)) or None
        for module in config.model.module_parallelisms.values():
            module.use_distributed_optimizer = sharded
            if config.model.deployment_mode == "colocated":  # homogeneous modules are alike
                sharded = bool(draw.getrandbits(1)) or None
        return config
    tensor, pipeline = draw.choice([(1, 1), (2, 1), (1, 2)])
    return digits_config(num_microbatches=2).with_layout(
        "heterogeneous",
        images={"tensor_parallel": draw.choice([1, 2]), "data_parallel": 1},
        language_module={
            "tensor_parallel": tensor,
            "pipeline_parallel": pipeline,
            "data_parallel": 1,
        },
    )


def main(pairs: Annotated[int, typer.Option(min=0)] = PAIRS) -> None:
    """Measure and print."""
    show("Checkpoints", rows(pairs))


if __name__ == "__main__":
    typer.run(main)
