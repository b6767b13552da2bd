"""Seconds of parts within the steps of a schedule: what a step does for one module, or waits for.

What does such a part has an attribute `times`, `UNTIMED` unless a monitor replaces it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from types import TracebackType

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


class _Timer:
    """Times the blocks of one part; it is made once, as a step enters many blocks."""

    __slots__ = ("_begun", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._begun = now()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.seconds += now() - self._begun


class PartTimes:
    """Adds up the seconds of parts. Blocks of one part do not contain each other."""

    def __init__(self) -> None:
        self._timers = {part: _Timer() for part in StepPart}

    def part(self, part: StepPart) -> AbstractContextManager[None]:
        """Time a block."""
        return self._timers[part]

    def take(self) -> dict[StepPart, float]:
        """Return the seconds since the last call; a part that did not occur has 0."""
        taken = {part: timer.seconds for part, timer in self._timers.items()}
        for timer in self._timers.values():
            timer.seconds = 0.0
        return taken


class _Untimed(PartTimes):
    def part(self, part: StepPart) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


UNTIMED = _Untimed()
"""Times nothing."""
