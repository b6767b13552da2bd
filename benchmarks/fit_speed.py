"""Fits on warm engines: against processes that are spawned for each fit, and against DDP."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import plain_fit
from benchmarks.plain_fit import (
    BATCH,
    LARGE,
    NODES,
    SMALL,
    STEPS,
    Network,
    digits,
    plain_loop,
)
from mimokit.cluster import EngineCluster
from mimokit.engine.strategies import (
    DiLoCoStrategy,
    FedAvgStrategy,
    OptimSpec,
    SimpleReduceStrategy,
    Strategy,
)
from mimokit.experiment import Trainer
from mimokit.extras.strategies.fits.job import FitJob
from mimokit.extras.strategies.fits.node import fit_node
from mimokit.extras.strategies.fits.records import NodeStep, records_of

LONG = 200
PAIRS, TURNS = 3, 7
"""Of fits against spawned processes, and of steps against other steps."""
LONGEST = 120.0
"""Seconds that a part may take before the benchmark fails."""
SGD = OptimSpec(torch.optim.SGD, lr=0.01)


def seconds_spawned() -> float:
    """Return how long processes take to start and train.

    An interpreter that has imported nothing but torch spawns them: each of them imports again what
    the main module of the spawning one has.
    """
    command = [sys.executable, "-m", plain_fit.__name__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=True)
    return float(done.stdout.splitlines()[-1])


def seconds_of_fit(trainer: Trainer, folder: Path, number: int) -> float:
    """Return how long a fit takes on warm engines."""
    begun = time.perf_counter()
    trainer.fit(
        strategy=SimpleReduceStrategy(SGD), num_nodes=NODES, max_steps=STEPS, batch_size=BATCH,
        minibatch_size=BATCH, log_dir=folder, run_name=str(number),
    )  # fmt: skip
    return time.perf_counter() - begun


def node_seconds(strategy: Strategy, width: int) -> float:
    """Return how long the steps of a fit take on this node."""
    times: list[float] = []

    def emit(message: Any) -> None:
        times.extend(one.seconds for one in records_of(message) if isinstance(one, NodeStep))

    torch.manual_seed(0)
    job = FitJob(model=Network(width), strategy=strategy, train=digits(), validation=digits(64),
                 checkpoints=Path(), max_steps=LONG, batch_size=BATCH, minibatch_size=BATCH,
                 val_interval=10**9)  # fmt: skip
    fit_node(job, emit, lambda: False)
    return sum(times)


def steps_on_a_node(width: int) -> list[tuple[float, float, float, float]]:
    """Return seconds of SimpleReduce, DDP, DiLoCo of H 100 and no exchange, in turns."""
    found = []
    for _ in range(TURNS):
        dist.barrier()
        reduce = node_seconds(SimpleReduceStrategy(SGD), width)
        dist.barrier()
        parallel = plain_loop(dist.get_rank(), LONG, parallel=True, width=width)
        dist.barrier()
        seldom = node_seconds(DiLoCoStrategy(SGD, H=100), width)
        dist.barrier()
        never = node_seconds(FedAvgStrategy(SGD, H=10**9), width)
        found.append((reduce, parallel, seldom, never))
    return found


def rows() -> Iterator[dict[str, Any]]:
    """Measure."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, EngineCluster(NODES, progress=False) as cluster:
        trainer = Trainer(Network(), digits(), digits(64), cluster=cluster)
        seconds_of_fit(trainer, Path(folder), 0)
        pairs = [
            (seconds_of_fit(trainer, Path(folder), number + 1), seconds_spawned())
            for number in range(PAIRS)
        ]
        nodes = {
            width: cluster.submit(steps_on_a_node, width, world_size=NODES).result(LONGEST * TURNS)
            for width in (LARGE, SMALL)
        }
    fit = statistics.median(one for one, _ in pairs)
    share = statistics.median(one / other for one, other in pairs)
    yield _row(f"fit of {STEPS} steps on {NODES} warm engines", fit, 2.0, "s", fit <= 2.0)
    yield _row("the same, over spawned processes", share, 0.25, "times", share <= 0.25)
    for width, found in nodes.items():
        yield from _step_rows(width, found)


def _step_rows(
    width: int, nodes: Sequence[list[tuple[float, float, float, float]]]
) -> Iterator[dict[str, Any]]:
    """Yield the ratios of one network; of every fit the slowest node counts.

    The small network computes a step in about a millisecond of a core, so that its ratios are those
    of fixed costs.
    """
    slowest = [
        [max(values) for values in zip(*turn, strict=True)] for turn in zip(*nodes, strict=True)
    ]
    reduce = statistics.median(parallel / ours for ours, parallel, _, _ in slowest)
    seldom = statistics.median(never / ours for _, _, ours, never in slowest)
    size = f"{sum(one.numel() for one in Network(width).parameters()):,} parameters"
    what = f"SimpleReduce, steps/s over DDP's, {size}"
    yield _row(what, reduce, "at least 0.95", "times", reduce >= 0.95)
    what = f"DiLoCo of H 100 over no exchange, {size}"
    yield _row(what, seldom, "at least 0.97", "times", seldom >= 0.97)


def _row(name: str, measured: float, target: Any, unit: str, ok: bool) -> dict[str, Any]:
    return {"name": name, "measured": measured, "target": target, "unit": unit, "ok": ok}


if __name__ == "__main__":
    from benchmarks.table import show

    show("Fits under strategies", rows())
