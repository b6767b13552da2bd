"""When bridges on shared ranks check that the replicas of a source agree."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from mimokit.engine.device import rank_device

if TYPE_CHECKING:
    from mimokit.engine.colocated.bridge import ColocatedBridgeCommunicator

SHARE = 0.01
"""Of the time of a loop that its checks take, at most."""


class EveryCall:
    """Every call of a bridge checks."""

    def begin_step(self) -> None:
        """Begin a step of the loop."""

    def run(self, check: Callable[[], None]) -> None:
        """Call the check."""
        check()


class OneStepOfN(EveryCall):
    """The first two steps check, then one of N, so that checks take at most 1 % of the time.

    N follows from the time of the last checks and from that of the shortest step without them, on
    the rank on which their quotient is largest. The first step is not timed, since it warms up.

    Attributes:
        every: N; 1 until it is known.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.every = 1
        self._clock = clock
        self._step, self._next = -1, 0
        self._began, self._shortest = math.nan, math.inf
        self._checking = self._agreeing = 0.0

    def begin_step(self) -> None:
        """Begin a step of the loop. Collective over the world after a timed step that checked."""
        now = self._clock()
        if self._step > 0:
            self._shortest = min(self._shortest, now - self._began - self._checking)
            if self._step == self._next:
                self.every = steps_between(self._largest_share())
                self._agreeing = self._clock() - now
        if self._step == self._next:
            self._next += self.every
        self._step += 1
        self._began, self._checking = self._clock(), 0.0

    def _largest_share(self) -> float:
        """Return the time of the checks of a step, and of agreeing on N, in shortest steps."""
        share = (self._checking + self._agreeing) / self._shortest
        of_rank = torch.tensor(share, dtype=torch.float64, device=rank_device())
        dist.all_reduce(of_rank, dist.ReduceOp.MAX)
        return float(of_rank)

    def run(self, check: Callable[[], None]) -> None:
        """Call the check in a step that is due."""
        if self._step != self._next:
            return
        begin = self._clock()
        check()
        self._checking += self._clock() - begin


def steps_between(share: float) -> int:
    """Return the steps of which one checks, where its checks take as long as `share` steps."""
    return max(1, math.ceil(share / SHARE))


def check_rarely(bridges: Iterable[ColocatedBridgeCommunicator]) -> EveryCall:
    """Let all bridges of a rank check in one step of N; the loop says when a step begins."""
    bridges = list(bridges)
    if not any(bridge.compares for bridge in bridges):
        return EveryCall()
    checks = OneStepOfN()
    for bridge in bridges:
        bridge.checks = checks
    return checks
