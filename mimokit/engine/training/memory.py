"""Memory of this rank: now, and at most since the step began.

On CUDA these are the numbers of its allocator. On a CPU, private memory is what would be free if
the process ended (the unique set size), and reserved memory is all that is resident, which
includes code and pages that a forked process shares.

Linux walks all pages of a process to add up its private ones (`smaps_rollup`), which takes
milliseconds. In between, what is resident (`statm`, which takes microseconds) is taken to grow and
shrink by private pages alone. The largest resident size is a counter of the kernel; where a process
may not reset it (`clear_refs`), the larger of the values at both ends of the step is reported.

A rank that has no memory for more says for what it held how much.
"""

import contextlib
import math
import os
import resource
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
import torch

from mimokit.engine.megatron import CPU_ONLY
from mimokit.units import bytes_text, parts_text

SHARE_OF_WALKS = 1e-3
"""Most of the process's CPU time that walks over all pages may take."""
_STATM, _CLEAR_REFS = Path("/proc/self/statm"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class MemoryUse:
    """Memory in bytes."""

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
    """Of a process on a CPU; its files stay open: opening one takes longer than reading it."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._next_walk = -math.inf
        self._shared = 0
        self._sizes = self._opened(_STATM, os.O_RDONLY)
        self._peak = self._opened(_CLEAR_REFS, os.O_WRONLY)

    def start(self) -> None:
        """Begin a step."""
        self._can_reset = False
        with contextlib.suppress(OSError):
            self._can_reset = bool(os.write(self._peak, b"5"))  # see proc(5)
        if not self._can_reset:
            self._began = self._resident()

    def read(self) -> MemoryUse:
        """Return the memory at the end of a step."""
        resident = self._resident()
        counted = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        most = 1024 * counted if self._can_reset else self._began
        if time.process_time() >= self._next_walk:
            self._walk(resident)
        return MemoryUse(resident - self._shared, resident, max(most, resident) - self._shared)

    def _opened(self, file: Path, access: int) -> int:
        try:
            opened = os.open(file, access)
        except OSError:  # not Linux, or not allowed
            return -1
        weakref.finalize(self, os.close, opened)
        return opened

    def _walk(self, resident: int) -> None:
        begun = time.process_time()
        self._shared = resident - int(self._process.memory_full_info().uss)
        ended = time.process_time()
        self._next_walk = ended + (ended - begun) / SHARE_OF_WALKS

    def _resident(self) -> int:
        if self._sizes < 0:
            return int(self._process.memory_info().rss)
        return int(os.pread(self._sizes, 256, 0).split()[1]) * _PAGE


_PAGE = os.sysconf("SC_PAGE_SIZE")


def memory_meter() -> MemoryMeter:
    """Return the meter of this process."""
    return ProcessMemory() if CPU_ONLY else CudaMemory()


Held = Mapping[str, Mapping[str, int]]
"""Module -> part -> bytes."""
_OF_TORCH_ON_CPU = "DefaultCPUAllocator"


class OutOfMemory(MemoryError):  # noqa: N818
    """A rank had no memory for more; its message says for what the rank held how much."""


@contextlib.contextmanager
def telling_what_is_held(when: str, held: Callable[[], Held]) -> Iterator[None]:
    """Have a failed allocation in this block raise `OutOfMemory`.

    Args:
        held: returns what the rank holds, and what was kept for backward passes at most so far.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise OutOfMemory(f"no memory was left {when}: {held_text(held())} ({cause})") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation of Python, of torch on a CPU or of torch on a GPU failed."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return not isinstance(error, OutOfMemory)
    return _OF_TORCH_ON_CPU in str(error)


def held_text(held: Held) -> str:
    """Return what a rank holds in words, with what the process or the device has in use."""
    modules = [f"'{module}' {parts_text(parts)}" for module, parts in held.items()]
    meter = memory_meter()
    meter.start()
    use = bytes_text(meter.read().allocated)
    return f"{use} in use, of which {'; '.join(modules)}" if modules else f"{use} in use"
