"""Seconds of parts within the steps of a schedule: what a step does for one module, or waits for.

Whoever does such a part (a module's reduction, a mailbox, an optimizer) has an attribute `times`,
which is `UNTIMED` unless a monitor replaces it.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from enum import StrEnum

import torch


class Part(StrEnum):
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


def now() -> float:
    """Return seconds on this rank's clock; on CUDA after the work queued so far is done."""
    torch.cuda.synchronize()
    return time.perf_counter()


class PartTimes:
    """Adds up the seconds of parts."""

    def __init__(self) -> None:
        self._seconds: dict[Part, float] = defaultdict(float)

    def part(self, part: Part) -> AbstractContextManager[None]:
        """Time a block."""
        return self._timed(part)

    @contextlib.contextmanager
    def _timed(self, part: Part) -> Iterator[None]:
        begun = now()
        try:
            yield
        finally:
            self._seconds[part] += now() - begun

    def take(self) -> dict[Part, float]:
        """Return the seconds since the last call; a part that did not occur has 0."""
        taken, self._seconds = self._seconds, defaultdict(float)
        return taken


class _Untimed(PartTimes):
    def part(self, part: Part) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


UNTIMED = _Untimed()
"""Times nothing."""
