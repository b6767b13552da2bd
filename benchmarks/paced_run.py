"""Ranks that send a sample at a steady pace, and a run of them that a monitor can show."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from mimokit.cluster import ClusterRun, EngineCluster, emit
from mimokit.samples import Sample, from_wire, to_wire
from tests.charts.fakes import step
from tests.charts.plans import plan

RANKS = 8


def send_at_a_pace(count: int, rate: float) -> int:
    """Send `count` samples of a step, `rate` a second; runs on a rank.

    A late sample is sent at once and does not delay the next. The rank stays for a second, so that
    the end of the run does not hurry the last samples.
    """
    dist.barrier()
    rank = dist.get_rank()
    sample = step(0, rank, 2.5)
    start = time.monotonic()
    for iteration in range(count):
        time.sleep(max(0.0, start + iteration / rate - time.monotonic()))
        emit(to_wire(replace(sample, iteration=iteration, time=time.time())))
    time.sleep(1.0)
    return count


class PacedRun:
    """What a monitor needs of a run, of ranks that send at a pace."""

    def __init__(self, cluster: EngineCluster, count: int, rate: float) -> None:
        self.config = SimpleNamespace(
            runtime=SimpleNamespace(num_iterations=count, warmup_iterations=0)
        )
        self.plan = plan()
        self._run: ClusterRun = cluster.submit(send_at_a_pace, count, rate, world_size=RANKS)

    @property
    def samples(self) -> list[Sample]:
        """What the ranks have sent so far."""
        return [from_wire(message) for message in self._run.samples]

    def on_sample(self, callback: Callable[[Sample], object]) -> None:
        """Call back for every sample."""
        self._run.on_sample(lambda message: callback(from_wire(message)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)
