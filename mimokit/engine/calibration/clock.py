"""Seconds of the wall clock and of the process, for code that runs many times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from mimokit.engine.megatron import CPU_ONLY

CHUNKS = 3
"""Repetitions are timed in this number of parts, of which the median counts."""


@dataclass(frozen=True)
class Timing:
    """The time of one call.

    Attributes:
        seconds: of the wall clock; on CUDA between two events around the calls.
        cpu_seconds: of this process; for laps see `Stopwatch`.
    """

    seconds: float
    cpu_seconds: float


def timed(function: Callable[[], object], repeats: int) -> Timing:
    """Return the median over parts of `repeats` calls; a first call is not counted."""
    function()
    per_chunk = max(1, repeats // CHUNKS)
    parts = [_chunk(function, per_chunk) for _ in range(min(CHUNKS, repeats))]
    return Timing(
        statistics.median(part.seconds for part in parts),
        statistics.median(part.cpu_seconds for part in parts),
    )


def _chunk(function: Callable[[], object], count: int) -> Timing:
    if not CPU_ONLY:
        return _chunk_on_cuda(function, count)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        function()
    return Timing((time.perf_counter() - wall) / count, (time.process_time() - cpu) / count)


def _chunk_on_cuda(function: Callable[[], object], count: int) -> Timing:
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    cpu = time.process_time()
    begin.record()
    for _ in range(count):
        function()
    end.record()
    cpu = time.process_time() - cpu
    end.synchronize()
    return Timing(begin.elapsed_time(end) / 1000 / count, cpu / count)


def own_seconds() -> float:
    """Return the CPU seconds of this thread.

    With CUDA those of the process, as autograd then computes in separate threads.
    """
    return time.thread_time() if CPU_ONLY else time.process_time()


def others_seconds() -> float:
    """Return the CPU seconds of the other threads of this process, mostly those of gloo.

    With CUDA 0, as `own_seconds` includes them.
    """
    return time.process_time() - own_seconds()


class Stopwatch:
    """Records the time between `start` and `stop`, over several rounds.

    The CPU seconds of a lap are those of `own_seconds`; concurrent work of gloo's threads belongs
    to the collective before.
    """

    def __init__(self) -> None:
        self.laps: list[Timing] = []
        self._wall = self._cpu = 0.0

    def start(self) -> None:
        """Begin a lap."""
        torch.cuda.synchronize()
        self._wall, self._cpu = time.perf_counter(), own_seconds()

    def stop(self) -> None:
        """End the lap; on CUDA when its work is done."""
        torch.cuda.synchronize()
        self.laps.append(Timing(time.perf_counter() - self._wall, own_seconds() - self._cpu))

    def mean(self, uncounted: int = 0) -> Timing:
        """Return the mean lap.

        Seconds that are added up need the mean. A median would leave out costs that occur in few
        laps, such as caches that another rank has filled: a tenth of the cost of collectives.

        Args:
            uncounted: number of first laps to leave out.
        """
        laps = self.laps[uncounted:]
        return Timing(
            statistics.fmean(lap.seconds for lap in laps),
            statistics.fmean(lap.cpu_seconds for lap in laps),
        )
