"""What processes of a cluster hold, and runs of changing layouts that must not add to it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.experiment import Evaluations, train
from tests.layouts import digits_config
from tests.layouts_apart import apart_config

SETTLE_SECONDS = 5.0
"""How long threads of closed groups may take to end."""


@dataclass(frozen=True)
class Footprint:
    """What a process holds.

    Attributes:
        files: open descriptors.
        threads: of all kinds.
        memory: bytes, pages that it shares counted in part (PSS).
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
    return (
        SoakRun(digits_config((1, 2), (2, 1), num_iterations=iterations), evaluations=few),
        SoakRun(apart_config((1, 1, 1), (1, 2, 1), 2, num_iterations=iterations), evaluations=few),
        SoakRun(digits_config((2, 1), (2, 1), num_iterations=iterations), True, tested),
        SoakRun(digits_config((1, 4), (2, 2), num_iterations=iterations), evaluations=few),
        SoakRun(apart_config((2, 1, 1), (1, 1, 2), 2, num_iterations=iterations), True, few),
        SoakRun(digits_config((1, 1), (1, 1), num_iterations=iterations), evaluations=tested),
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
    """Return what each engine holds, and this process, once threads have ended."""
    found = {f"engine {engine.slot}": _footprint(engine.pid) for engine in cluster.engines}
    return {**found, "client": _footprint(os.getpid())}


def _footprint(pid: int | None) -> Footprint:
    process = psutil.Process(pid)
    deadline = time.monotonic() + SETTLE_SECONDS
    threads = process.num_threads()
    while time.monotonic() < deadline:
        time.sleep(0.05)
        before, threads = threads, process.num_threads()
        if threads >= before:
            break
    return Footprint(process.num_fds(), threads, process.memory_full_info().pss)
