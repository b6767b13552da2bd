"""Memory of this rank: now, and at most since the step began.

On CUDA these are the numbers of its allocator. On a CPU, private memory is what would be free if
the process ended (the unique set size), and reserved memory is all that is resident, which
includes code and pages that a forked process shares.

Linux walks all pages of a process to add up its private ones (`smaps_rollup`). That takes
milliseconds, so it is done at most once a second. In between, what is resident (`statm`, which
takes microseconds) is taken to grow and shrink by private pages alone. The largest resident size is
a counter of the kernel, which a process may reset (`clear_refs`). Where it may not, the larger of
the values at the start and the end of the step is reported.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
import torch

from mimokit.engine.megatron import CPU_ONLY

SECONDS_BETWEEN_WALKS = 1.0
_STATM = Path("/proc/self/statm")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""See proc(5)."""


@dataclass(frozen=True)
class MemoryUse:
    """Memory in bytes.

    Attributes:
        allocated: in use.
        reserved: taken from the device or the system.
        peak: most that was in use since the step began.
    """

    allocated: int
    reserved: int
    peak: int


class MemoryMeter(Protocol):
    """Reads memory at the ends of steps."""

    def start(self) -> None:
        """Begin a step."""

    def read(self) -> MemoryUse:
        """Return the memory at the end of a step."""


class CudaMemory:
    """Of the CUDA allocator."""

    def start(self) -> None:
        """Begin a step."""
        torch.cuda.reset_peak_memory_stats()

    def read(self) -> MemoryUse:
        """Return the memory at the end of a step."""
        return MemoryUse(
            int(torch.cuda.memory_allocated()),
            int(torch.cuda.memory_reserved()),
            int(torch.cuda.max_memory_allocated()),
        )


class ProcessMemory:
    """Of a process on a CPU."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._walked = -SECONDS_BETWEEN_WALKS
        self._shared = 0
        self._began = 0

    def start(self) -> None:
        """Begin a step."""
        self._can_reset = False
        with contextlib.suppress(OSError):
            _CLEAR_REFS.write_text(_RESET_PEAK)
            self._can_reset = True
        self._began = self._resident()

    def read(self) -> MemoryUse:
        """Return the memory at the end of a step."""
        resident = self._resident()
        peak = max(self._began, resident)
        if self._can_reset:
            peak = max(peak, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        if time.monotonic() >= self._walked + SECONDS_BETWEEN_WALKS:
            self._walked = time.monotonic()
            self._shared = resident - int(self._process.memory_full_info().uss)
        return MemoryUse(resident - self._shared, resident, peak - self._shared)

    def _resident(self) -> int:
        try:
            return int(_STATM.read_text().split()[1]) * _PAGE
        except OSError:  # not Linux
            return int(self._process.memory_info().rss)


_PAGE = os.sysconf("SC_PAGE_SIZE")


def memory_meter() -> MemoryMeter:
    """Return the meter of this process."""
    return ProcessMemory() if CPU_ONLY else CudaMemory()
