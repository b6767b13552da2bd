"""Seconds of parts within the steps of a schedule: what a step does for one module, or waits for.

What does such a part has an attribute `times`, `UNTIMED` unless a monitor replaces it.
"""

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Any

import torch

from mimokit.engine.megatron import CPU_ONLY


class StepPart(StrEnum):
    """A part of a step.

    Attributes:
        REDUCTION: a module's gradients are reduced.
        UPDATE: a module's gradients are clipped and its weights updated.
        PEER: a message has not begun to arrive, or is not taken yet, because the peer is not ready.
        GROUP: ranks share a received message among themselves, in a collective.
    """

    REDUCTION = "reduction"
    UPDATE = "update"
    PEER = "peer"
    GROUP = "group"


def _after_queued_work() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


now: Callable[[], float] = time.perf_counter if CPU_ONLY else _after_queued_work
"""Returns seconds on this rank's clock; on CUDA after the work queued so far is done."""

Mark = Any
"""A moment: seconds on this rank's clock; on CUDA an event behind the work queued so far."""


class DeviceMarks:
    """Marks of CUDA, which are set without waiting for the device, and read once they matter."""

    def __init__(self) -> None:
        self._origin: Any = None
        self._seconds = 0.0

    def begin(self) -> float:
        """Wait for the device and return the seconds from which marks count until the next call.

        Events of long ago would give coarse seconds.
        """
        self._seconds = _after_queued_work()
        self._origin = self.set()
        return self._seconds

    def set(self) -> Mark:
        """Return a mark."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, mark: Mark) -> float:
        """Wait until a mark is reached and return its moment on this rank's clock."""
        mark.synchronize()
        return self._seconds + float(self._origin.elapsed_time(mark)) / 1e3


if CPU_ONLY:
    begin_marks: Callable[[], float] = time.perf_counter
    set_mark: Callable[[], Mark] = time.perf_counter
    seconds_at: Callable[[Mark], float] = float
else:
    _marks = DeviceMarks()
    begin_marks, set_mark, seconds_at = _marks.begin, _marks.set, _marks.seconds


class _Timer:
    """Times the blocks of one part; it is made once, as a step enters many blocks."""

    __slots__ = ("_begun", "_spans")

    def __init__(self) -> None:
        self._spans: list[tuple[Mark, Mark]] = []

    def take(self) -> float:
        seconds = sum(seconds_at(end) - seconds_at(begun) for begun, end in self._spans)
        self._spans.clear()
        return seconds

    def __enter__(self) -> None:
        self._begun = set_mark()

    def __exit__(self, *_: object) -> None:
        self._spans.append((self._begun, set_mark()))


class PartTimes:
    """Adds up the seconds of parts. Blocks of one part do not contain each other."""

    def __init__(self) -> None:
        self._timers = {part: _Timer() for part in StepPart}

    def part(self, part: StepPart) -> AbstractContextManager[None]:
        """Time a block."""
        return self._timers[part]

    def take(self) -> dict[StepPart, float]:
        """Return the seconds since the last call; a part that did not occur has 0."""
        return {part: timer.take() for part, timer in self._timers.items()}


class _Untimed(PartTimes):
    def part(self, part: StepPart) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


UNTIMED = _Untimed()
"""Times nothing."""
