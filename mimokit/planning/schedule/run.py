"""Run a schedule step by step: whether it ends, and when each of its tasks does."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimokit.planning.schedule.schedule import Schedule
from mimokit.step_kinds import COMPUTATIONS

Moment = Any
"""A number, or an array of one per set of times."""
Table = Sequence[Sequence[Moment]] | NDArray[np.float64]
"""Seconds: [stages, micro-batches] or [edges, micro-batches], of arrays with sets of times last."""

_NUMBERS = {str(kind): number for number, kind in enumerate(COMPUTATIONS)}


@dataclass(slots=True, eq=False)
class _Lane:
    """An edge in one direction, which carries one message at a time.

    Attributes:
        receiver: worker that is woken if it waits.
        carries: micro-batch -> whether it has a message.
        begun, ended: micro-batch -> of its message; None: not yet. 0 where there is none.
        free: when the last message ended.
    """

    edge: int
    way: int
    receiver: int
    carries: list[bool]
    seconds: Sequence[Moment]
    begun: list[Moment | None]
    ended: list[Moment | None]
    free: Moment = 0.0
    is_awaited: bool = False


class ScheduleRun:
    """All workers, each of which computes as soon as its messages are there.

    Attributes:
        end: when the last computation ends; None: workers wait indefinitely, or receive the
            messages of an edge in another order than they are sent in.
    """

    def __init__(
        self,
        schedule: Schedule,
        computing: Sequence[Table],
        sending: Sequence[Table],
        later: Callable[[Moment, Moment], Moment] = max,
    ) -> None:
        """Run a schedule to its end.

        Args:
            computing: of each of `COMPUTATIONS`; without gradients of weights apart the first two.
            sending: of messages forward and backward.
            later: the later one of two moments; of arrays `np.maximum`.
        """
        stages, count = schedule.graph.stages, schedule.num_microbatches
        self._later, self._seconds = later, computing
        orders: Sequence[Sequence[Any]] = schedule.orders  # whatever computes has a stage
        self._programs = [
            [(_NUMBERS[kind], stage, m) for kind, stage, m in steps if kind in _NUMBERS]
            for steps in orders
        ]
        self._at, self._now = [0 for _ in orders], [0.0 for _ in orders]
        tables: list[list[list[list[Any]]]] = [
            [[[None] * size for _ in stages] for _ in COMPUTATIONS] for size in (count, count, 0, 0)
        ]
        self._begun, self._ended, self._into, self._out = tables
        self._in_turn = [[list[int]() for _ in stages] for _ in COMPUTATIONS]
        for kind, stage, m in chain.from_iterable(self._programs):
            self._in_turn[kind][stage].append(m)
        self._lanes = list(self._connected(schedule, sending))
        awake = list(range(len(self._programs)))
        while awake:
            awake += self._advance(awake.pop())
        has_ended = self._at == list(map(len, self._programs))
        self.end: Any = reduce(later, self._now) if has_ended and not self._is_mixed else None

    def tasks(self) -> Iterator[tuple[int, int, int, bool, Moment, Moment]]:
        """Yield the columns of `Tasks`, begin and end, of every task."""
        for kind, stage, m in chain.from_iterable(self._programs):
            yield stage, m, kind, False, self._begun[kind][stage][m], self._ended[kind][stage][m]
        for lane in self._lanes:
            for m in compress(range(len(lane.carries)), lane.carries):
                yield lane.edge, m, lane.way, True, lane.begun[m], lane.ended[m]

    def _connected(self, schedule: Schedule, sending: Sequence[Table]) -> Iterator[_Lane]:
        work, worker_of = schedule.work, schedule.graph.worker_of
        carried = work.carry_forward.tolist(), work.carry_backward.tolist()
        self._is_mixed = False
        for edge in schedule.graph.edges:
            ends = edge.source, edge.destination
            for way, (sender, receiver) in enumerate((ends, ends[::-1])):
                carries, seconds = carried[way][edge.index], sending[way][edge.index]
                none = [None if each else 0.0 for each in carries]
                ways = edge.index, way, worker_of[receiver]
                lane = _Lane(*ways, carries, seconds, none, none.copy())
                self._out[way][sender].append(lane)
                self._into[way][receiver].append(lane)
                sent, received = self._in_turn[way][sender], self._in_turn[way][receiver]
                if sent != received:  # micro-batches without a message are in either's place
                    sent, received = (
                        list(filter(carries.__getitem__, m)) for m in (sent, received)
                    )
                    self._is_mixed |= sent != received
                yield lane

    def _advance(self, worker: int) -> list[int]:
        """Compute until a message is missing; return the workers that waited for those sent."""
        later, begun, ended, into = self._later, self._begun, self._ended, self._into
        program, now, woken = self._programs[worker], self._now[worker], list[int]()
        for at in range(self._at[worker], len(program)):
            kind, stage, microbatch = program[at]
            begin = now
            for lane in into[kind][stage]:
                arrival = lane.ended[microbatch]
                if arrival is None:
                    self._at[worker], self._now[worker], lane.is_awaited = at, now, True
                    return woken
                begin = later(begin, arrival)
            if kind and ended[kind - 1][stage][microbatch] is None:
                return woken  # a backward ordered before its own forward cannot begin
            begun[kind][stage][microbatch] = begin
            now = begin + self._seconds[kind][stage][microbatch]
            ended[kind][stage][microbatch] = now
            for lane in self._out[kind][stage]:
                if lane.carries[microbatch]:
                    lane.begun[microbatch] = begin = later(lane.free, now)
                    lane.free = lane.ended[microbatch] = begin + lane.seconds[microbatch]
                    if lane.is_awaited:
                        woken.append(lane.receiver)
                        lane.is_awaited = False
        self._at[worker], self._now[worker] = len(program), now
        return woken
