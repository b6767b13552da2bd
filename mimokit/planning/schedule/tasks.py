"""A schedule as arrays: every computation and transfer is a task, with the tasks it waits for."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from mimokit.planning.schedule.schedule import Schedule
from mimokit.step_kinds import COMPUTATIONS

Indices = NDArray[np.int64]
FORWARD, BACKWARD = 0, 1
_NUMBERS = {kind: number for number, kind in enumerate(COMPUTATIONS)}


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """Computations and transfers. What a task waits for does not depend on durations.

    Tasks are numbered in levels: a task waits only for tasks of earlier levels. Task number `size`,
    which does not exist, fills the rows of tasks that wait for fewer tasks than others.

    Attributes:
        place: task -> index of its stage (a computation) or of its edge (a transfer).
        kind: task -> place of its kind in `COMPUTATIONS`; a transfer is forward or backward.
        waits_for: [tasks, most that a task waits for] of task numbers. The first is the task before
            it on the same ranks, or on the same edge in the same direction, which carries one
            message at a time.
        levels: task numbers at which a level begins, and `size`.
        faulty: tasks would wait indefinitely, or messages overtake each other. Such a graph cannot
            be simulated.
    """

    place: Indices
    microbatch: Indices
    kind: Indices
    transfer: NDArray[np.bool_]
    waits_for: Indices
    levels: tuple[int, ...]
    faulty: bool

    @property
    def size(self) -> int:
        """Number of tasks."""
        return len(self.place)

    @property
    def backward(self) -> NDArray[np.bool_]:
        """Whether a task is part of a backward pass."""
        return self.kind > FORWARD


@lru_cache(maxsize=16)
def task_graph(schedule: Schedule) -> TaskGraph:
    """Return the tasks of a schedule.

    Raises:
        ScheduleError: the order leaves work out or repeats it.
    """
    builder = _Builder(schedule)
    builder.add_computations()
    builder.add_transfers()
    place, microbatch, kind, transfer, waits_for = builder.arrays()
    order, levels = _levels(waits_for)
    if len(order) < len(place):  # a cycle: the rest stays in any order
        rest = np.setdiff1d(np.arange(len(place)), order)
        order = np.concatenate([order, rest])
        builder.faulty = True
    number = np.empty(len(place) + 1, dtype=np.int64)
    number[order] = np.arange(len(place))
    number[-1] = len(place)
    return TaskGraph(
        place=place[order],
        microbatch=microbatch[order],
        kind=kind[order],
        transfer=transfer[order],
        waits_for=number[waits_for[order]],
        levels=levels,
        faulty=builder.faulty,
    )


class _Builder:
    """Numbers the tasks: all of a worker, then of the next; then edge by edge."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        graph, count = schedule.graph, schedule.num_microbatches
        shape = (len(COMPUTATIONS), len(graph.stages), count)
        self.computation = np.full(shape, -1, dtype=np.int64)
        self.size = 0
        self.faulty = False
        self.added: list[tuple[Indices, Indices, Indices]] = []
        self.computations = 0
        self.waits: list[tuple[Indices, Indices]] = []

    def add_computations(self) -> None:
        for ordered in self.schedule.orders:
            steps = ((stage, m, _NUMBERS[kind]) for kind, stage, m in ordered if kind in _NUMBERS)
            table = np.fromiter(chain.from_iterable(steps), np.int64).reshape(-1, 3)
            numbers = self._add(table[:, 0], table[:, 1], table[:, 2])
            self.computation[table[:, 2], table[:, 0], table[:, 1]] = numbers
        self.computations = self.size
        before, after = self.computation[:-1], self.computation[1:]
        self.faulty |= bool(((after >= 0) & (after < before)).any())

    def add_transfers(self) -> None:
        work = self.schedule.work
        for edge in self.schedule.graph.edges:
            for direction, carried, ends in (
                (FORWARD, work.carry_forward, (edge.source, edge.destination)),
                (BACKWARD, work.carry_backward, (edge.destination, edge.source)),
            ):
                microbatches = np.flatnonzero(carried[edge.index])
                self._add_transfers(edge.index, direction, microbatches, ends)

    def _add_transfers(
        self, edge: int, direction: int, microbatches: Indices, ends: tuple[int, int]
    ) -> None:
        senders = self.computation[direction, ends[0], microbatches]
        receivers = self.computation[direction, ends[1], microbatches]
        in_order = np.argsort(senders)
        microbatches, senders = microbatches[in_order], senders[in_order]
        receivers = receivers[in_order]
        self.faulty |= bool((np.diff(receivers) < 0).any())
        places = np.full(len(microbatches), edge)
        numbers = self._add(places, microbatches, np.full(len(microbatches), direction))
        self.waits.append((numbers, senders))
        self.waits.append((receivers, numbers))

    def _add(self, places: Indices, microbatches: Indices, kinds: Indices) -> Indices:
        numbers = np.arange(self.size, self.size + len(microbatches))
        self.size += len(microbatches)
        self.added.append((places, microbatches, kinds))
        return numbers

    def arrays(self) -> tuple[Indices, Indices, Indices, NDArray[np.bool_], Indices]:
        places, microbatches, kinds = zip(*self.added, strict=True)
        return (
            np.concatenate(places),
            np.concatenate(microbatches),
            np.concatenate(kinds),
            np.arange(self.size) >= self.computations,
            self._waits_for(np.array(list(map(len, places)))),
        )

    def _waits_for(self, lengths: Indices) -> Indices:
        """Return the table: first the task before in the same place, then the others."""
        nothing = np.zeros(0, np.int64)
        tasks = np.concatenate([nothing, *(task for task, _ in self.waits)])
        others = np.concatenate([nothing, *(other for _, other in self.waits)])
        before = np.arange(self.size) - 1
        before[(np.cumsum(lengths) - lengths)[lengths > 0]] = self.size  # the first of a place
        return np.column_stack([before, _in_rows(tasks, others, self.size)])


def _in_rows(rows: Indices, values: Indices, size: int) -> Indices:
    """Return a table with each value in its row, after those before it; `size` fills the rest."""
    in_order = np.argsort(rows, kind="stable")
    rows, values = rows[in_order], values[in_order]
    column = np.arange(len(rows)) - np.searchsorted(rows, rows)
    table = np.full((size, 1 + int(column.max(initial=0))), size, dtype=np.int64)
    table[rows, column] = values
    return table


def _levels(waits_for: Indices) -> tuple[Indices, tuple[int, ...]]:
    """Return tasks level by level, without those that wait indefinitely, and where levels begin."""
    size = len(waits_for)
    followers = _followers(waits_for).tolist()
    missing = [*np.count_nonzero(waits_for < size, axis=1).tolist(), 0]
    level = [task for task in range(size) if not missing[task]]
    order, begins = level.copy(), [0]
    while level:
        begins.append(len(order))
        next_up = []
        for task in level:  # a level has few tasks: arrays of them take longer
            for follower in followers[task]:
                missing[follower] -= 1
                if not missing[follower]:
                    next_up.append(follower)
        level = next_up
        order += level
    return np.array(order, dtype=np.int64), tuple(begins)


def _followers(waits_for: Indices) -> Indices:
    """Return the inverse table: task -> the tasks that wait for it."""
    size = len(waits_for)
    tasks, columns = np.nonzero(waits_for < size)
    return _in_rows(waits_for[tasks, columns], tasks, size)
