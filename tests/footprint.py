"""What processes of a cluster hold, and runs of changing layouts that must not add to it."""

import itertools
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from mimokit.cluster import EngineCluster
from mimokit.cluster.patience import slowdown
from mimokit.config import ExperimentConfig
from mimokit.experiment import Evaluations, train
from tests.layouts import digits_config
from tests.layouts_apart import apart_config

SETTLE_SECONDS = 10.0
"""How long threads of closed groups may take to end on an idle machine."""
SAME_LOOKS = 10
"""How many looks in a row must find no fewer."""
LATE = {"files": 2, "threads": 2, "memory": 0}
"""What may be there a little longer than it is needed; several runs that leave some leave more."""


@dataclass(frozen=True)
class Footprint:
    """What a process holds.

    Attributes:
        files: open descriptors.
        threads: of all kinds.
        memory: bytes that it has written, pages that others have from it by a fork counted in part
            (the anonymous part of PSS). Pages of files are left out: how many of them count here
            depends on which other processes have loaded the same libraries.
    """

    files: int
    threads: int
    memory: int


@dataclass(frozen=True)
class SoakRun:
    """One run of a soak.

    Attributes:
        config: its layout.
        trace: whether its steps are timed.
        evaluations: when it tests.
    """

    config: ExperimentConfig
    trace: bool = False
    evaluations: Evaluations | None = None


def soak_runs(iterations: int) -> tuple[SoakRun, ...]:
    """Return runs in all three modes and several world sizes, of at most 4 ranks."""
    tested = Evaluations(interval=1, samples=8, final_samples=8)
    few = Evaluations(samples=8, final_samples=8)
    steps = {"num_iterations": iterations}
    return (
        SoakRun(digits_config((1, 2), (2, 1), **steps), evaluations=few),
        SoakRun(apart_config((1, 1, 1), (1, 2, 1), 2, **steps), evaluations=few),
        SoakRun(digits_config((2, 1), (2, 1), **steps), True, tested),
        SoakRun(digits_config((1, 4), (2, 2), **steps), evaluations=few),
        SoakRun(apart_config((2, 1, 1), (1, 1, 2), 2, **steps), True, few),
    )


def soak(
    cluster: EngineCluster, runs: tuple[SoakRun, ...], count: int, directory: Path
) -> Iterator[int]:
    """Train runs one after another, again and again, and yield the number of each that has ended.

    Args:
        cluster: with an engine for each rank.
        runs: in turn.
        count: of runs.
        directory: for their folders.
    """
    for number, run in zip(range(1, count + 1), itertools.cycle(runs), strict=False):
        folder = directory / f"run-{number % len(runs)}"
        train(
            cluster, run.config, evaluations=run.evaluations, directory=folder, trace=run.trace
        ).result()
        yield number


def footprints(cluster: EngineCluster) -> dict[str, Footprint]:
    """Return what each engine holds, and this process, when the engines have left their world."""
    cluster.form_world(1)
    pids = {f"engine {engine.slot}": engine.pid for engine in cluster.engines}
    return _settled({**pids, "client": os.getpid()})


def own_footprint() -> Footprint:
    """Return what this process holds."""
    return _settled({"client": os.getpid()})["client"]


def _settled(pids: Mapping[str, int | None]) -> dict[str, Footprint]:
    """Wait until files and threads get no fewer: those of closed groups end a little later."""
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}
    deadline = time.monotonic() + SETTLE_SECONDS * slowdown()
    held, same = _counts(processes), 0
    while same < SAME_LOOKS and time.monotonic() < deadline:
        time.sleep(0.1)
        now = _counts(processes)
        fewer = any(new < old for new, old in zip(now, held, strict=True))
        held, same = now, 0 if fewer else same + 1
    return {
        name: Footprint(process.num_fds(), process.num_threads(), _written(process.pid))
        for name, process in processes.items()
    }


def _counts(processes: Mapping[str, psutil.Process]) -> list[int]:
    return [count for one in processes.values() for count in (one.num_fds(), one.num_threads())]


def _written(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:"))


def grown(
    first: Mapping[str, Footprint], last: Mapping[str, Footprint], most: float = 0.05
) -> list[str]:
    """Name what processes hold more of than before, by more than a share of it."""
    return [
        f"{name} of {process}: {before:,} before, {now:,} now"
        for process in first
        for name in ("files", "threads", "memory")
        if (now := getattr(last[process], name))
        > (1.0 + most) * (before := getattr(first[process], name)) + LATE[name]
    ]
