"""Finds ranks that do nothing while a run stands still, by asking each again where it is.

A rank that computes has run between the two answers, and one that waits for others says so. Left
are ranks that a lock, a sleep or a signal keeps from going on, those that poll in a loop in which
nothing changes, and those that do not answer.
"""

import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from mimokit.cluster.patience import slowdown
from mimokit.cluster.symptoms import SYMPTOMS
from mimokit.cluster.worker.rounds import Call
from mimokit.cluster.worker.stack import Place

FIRST_SECONDS = 1.0
"""How long a run stands still, beyond what a step takes, before its ranks are asked.

They are asked again when the table says so, and then after twice as long each time: one look may
miss a rank that does nothing. A rank that does not answer the first question is known after
`link.ANSWER_SECONDS`, about when the others are asked again.
"""
MOST_WORK = 0.1
"""Of a core, that other threads and processes of a rank may use while that does nothing.

With more of it the rank waits for these: they load its data, for example.
"""
MOST_OF_DELAY, LEAST_RUN = 0.5, 0.05
"""A rank that waited for a core for more of the time, and ran for fewer seconds, is not judged."""
MOST_OF_SLEEPING = 0.5
"""Of a core, that a loop which sleeps may use."""
TIMES = 10.0
"""How many of its own steps a run may take for one, if all ranks are silent."""
FEWEST, REMEMBERED = 3, 100
"""Steps after which the length of a step is known, and of which it is the median."""

Places = dict[int, "Future[Place | None]"]


class Standstill:
    """The times at which ranks report, and where they are when none does.

    Args:
        ask: returns where a rank is, None if it does not answer.

    Attributes:
        told: whether the standstill in progress was reported to the user.
    """

    def __init__(self, ask: Callable[[int], Place | None]) -> None:
        self._ask = ask
        self._last: dict[int, float] = {}
        self._steps: deque[float] = deque(maxlen=REMEMBERED)
        self._silence = self._asked_at = 0.0
        self._looks: list[Places] = []
        self.told = False

    def reported(self, rank: int) -> None:
        """Samples of a rank have come."""
        now = time.monotonic()
        if rank in self._last:
            self._steps.append(now - self._last[rank])
        self._last[rank] = now
        self.told = False

    @property
    def step(self) -> float | None:
        """The seconds that a step takes, None where that is not known yet."""
        steps = tuple(self._steps)
        return statistics.median(steps) if len(steps) >= FEWEST else None

    @property
    def silence(self) -> float:
        """Seconds since any rank has reported; 0 before the first time."""
        return time.monotonic() - max(self._last.values()) if self._last else 0.0

    @property
    def is_total(self) -> bool:
        """Whether the run stands still for so long that the user must know; once."""
        step = self.step
        most = max(SYMPTOMS["still"].after, TIMES * (step or 0.0))
        return not self.told and step is not None and self.silence >= most

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
        idle = {
            rank: place.result()
            for rank, place in now.items()
            if rank in ranks and does_nothing(before[rank].result(), place.result())
        }
        return {} if self._may_wait_for_work(idle, now) else idle

    def _may_wait_for_work(self, idle: Mapping[int, Place | None], now: Places) -> bool:
        """Whether another rank works, which takes longer on a busy machine.

        That all others wait, for this rank, is true of an idle machine and of a busy one.
        """
        others = [place.result() for rank, place in now.items() if rank not in idle]
        works = any(place is not None and not place.waits for place in others)
        silent = any(place is None for place in idle.values())
        return (works or silent) and self._silence < SYMPTOMS["idle"].after * slowdown()

    def _is_due(self) -> bool:
        if not self._looks:
            return self._silence >= FIRST_SECONDS
        between = max(SYMPTOMS["idle"].after - FIRST_SECONDS, self._asked_at)
        return self._silence >= self._asked_at + between

    def _look(self, ranks: Sequence[int]) -> None:
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


def places_text(places: Mapping[int, Place | None]) -> str:
    """Return where ranks are, as text; ranks in one place are named together."""
    alike: dict[str, list[int]] = {}
    for rank, place in places.items():
        stack = place.stack if place is not None else ""
        alike.setdefault(stack or "  it does not answer\n", []).append(rank)
    return "".join(
        f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(map(str, ranks))}:\n{stack}"
        for stack, ranks in alike.items()
    )


def _answered(places: Places) -> bool:
    return all(place.done() for place in places.values())


def does_nothing(before: Place | None, now: Place | None) -> bool:
    """Whether a rank has done nothing between two looks at it."""
    if before is None or now is None:
        return before is now
    if now.waits or now.cpu_seconds is None or before.cpu_seconds is None:
        return False
    seconds = max(now.clock - before.clock, 1e-9)
    if now.work_seconds - before.work_seconds > MOST_WORK * seconds:
        return False
    delay = now.delay_seconds - before.delay_seconds
    if before.stack == now.stack and before.cpu_seconds == now.cpu_seconds:
        return delay <= MOST_WORK * seconds
    ran = now.cpu_seconds - before.cpu_seconds
    if delay > MOST_OF_DELAY * seconds and ran < LEAST_RUN:
        return False
    return _polls(before, now, ran / seconds)


def _polls(before: Place, now: Place, core: float) -> bool:
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
