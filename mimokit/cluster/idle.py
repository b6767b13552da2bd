"""Finds ranks that do nothing while a run stands still, by asking each again where it is.

A rank that computes has run between the two answers, and one that waits for others says so. Left
are ranks that a lock, a sleep or a signal keeps from going on, those that poll in a loop in which
nothing changes, and those that do not answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from mimokit.cluster.patience import slowdown
from mimokit.cluster.worker.rounds import Call
from mimokit.cluster.worker.stack import Place

FIRST_SECONDS, SECOND_SECONDS = 1.0, 6.0
"""How long a run stands still, beyond what a step takes, before its ranks are asked, and again.

They are asked again after twice as long each time: one look may miss a rank that does nothing.

A rank that does not answer the first question is known after `link.ANSWER_SECONDS`, about when the
others are asked again: both kinds are named within 10 s, on a machine that is not busy.
"""
MOST_WORK = 0.1
"""Of a core, that other threads and processes of a rank may use while that does nothing.

With more of it the rank waits for these: they load its data, for example.
"""
MOST_OF_SLEEPING = 0.5
"""Of a core, that a loop which sleeps may use."""

Places = dict[int, "Future[Place | None]"]


class IdleWatch:
    """Asks the ranks of a run that stands still.

    Args:
        ask: returns where a rank is, None if it does not answer.
    """

    def __init__(self, ask: Callable[[int], Place | None]) -> None:
        self._ask = ask
        self._silence = self._asked_at = 0.0
        self._looks: list[Places] = []

    def idle(self, ranks: Sequence[int], silence: float) -> dict[int, Place | None]:
        """Return the ranks that do nothing, and where; None for one that does not answer.

        To be called again and again, and returns at once.

        Args:
            ranks: that have not returned.
            silence: seconds since any rank has reported, without those that a step takes.
        """
        if silence < self._silence:  # a rank has reported
            self._looks = []
        self._silence = silence
        if self._is_due() and all(map(_answered, self._looks)):
            self._look(ranks)
        if len(self._looks) < 2 or not all(map(_answered, self._looks)):
            return {}
        before, now = self._looks
        return {
            rank: place.result()
            for rank, place in now.items()
            if rank in ranks and _does_nothing(before[rank].result(), place.result())
        }

    def _is_due(self) -> bool:
        patience = slowdown()
        if not self._looks:
            return self._silence >= FIRST_SECONDS * patience
        between = max((SECOND_SECONDS - FIRST_SECONDS) * patience, self._asked_at)
        return self._silence >= self._asked_at + between

    def _look(self, ranks: Sequence[int]) -> None:
        """Ask ranks where they are, and keep what they have said before."""
        silent: Places = {}
        if len(self._looks) == 1:  # that one does not answer is known late enough: ask no more
            (first,) = self._looks
            silent = {rank: place for rank, place in first.items() if place.result() is None}
        there = [rank for rank in ranks if rank not in silent]
        self._looks = [*self._looks[-1:], {**silent, **self._asked(there)}]
        self._asked_at = self._silence

    def _asked(self, ranks: Sequence[int]) -> Places:
        if not ranks:
            return {}
        threads = ThreadPoolExecutor(len(ranks), "mimokit-places")
        asked = {rank: threads.submit(self._ask, rank) for rank in ranks}
        threads.shutdown(wait=False)
        return asked


def _answered(places: Places) -> bool:
    return all(place.done() for place in places.values())


def _does_nothing(before: Place | None, now: Place | None) -> bool:
    if before is None or now is None:
        return before is now
    if now.waits or now.cpu_seconds is None or before.cpu_seconds is None:
        return False
    seconds = max(now.clock - before.clock, 1e-9)
    if now.work_seconds - before.work_seconds > MOST_WORK * seconds:
        return False
    if before.stack == now.stack and before.cpu_seconds == now.cpu_seconds:
        return True
    return _polls(before, now, (now.cpu_seconds - before.cpu_seconds) / seconds)


def _polls(before: Place, now: Place, core: float) -> bool:
    """Whether a rank goes round in a loop in which nothing changes.

    Args:
        core: that it has used since, from 0 to 1.
    """
    if before.waits:
        return False
    both = list(itertools.takewhile(_is_same_call, zip(before.calls, now.calls, strict=False)))
    outer = all(then.position == call.position for then, call in both[:-1])
    if not (both and outer and both[-1][0].form):
        return False
    (then, loop), kinds = both[-1], {before.rounds, now.rounds}
    if kinds == {"sleeps"}:
        return core < MOST_OF_SLEEPING and then.form == loop.form
    goes_round = "runs" in kinds or then.position != loop.position
    return goes_round and then.values == loop.values


def _is_same_call(calls: tuple[Call, Call]) -> bool:
    return calls[0].frame == calls[1].frame
