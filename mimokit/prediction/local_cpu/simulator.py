"""Event simulation of ranks that share the cores of a machine (processor sharing).

Each rank computes, joins collectives, sends and receives in the order of its program. If more ranks
are active than there are cores, each gets an equal share of the cores. A rank that waits uses no
core. With many ranks per core the result is close to all CPU seconds divided by the cores; with a
core for each rank it is the critical path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """What an operation is part of.

    Attributes:
        module: the module, None for work that belongs to no single module.
        kind: the step of the schedule, a value of `StepKind`. Calibration uses names of pieces.
    """

    module: str | None
    kind: str

    def __str__(self) -> str:
        return self.kind if self.module is None else f"{self.module} {self.kind}"


@dataclass(frozen=True)
class Compute:
    """CPU seconds that involve no other rank."""

    span: Span
    seconds: float


@dataclass(frozen=True)
class Collective:
    """CPU seconds of this rank, then a wait until all members have finished theirs."""

    span: Span
    seconds: float
    members: tuple[int, ...]


@dataclass(frozen=True)
class Send:
    """CPU seconds that send a message. The rank does not wait for the receiver."""

    span: Span
    seconds: float
    key: Hashable


@dataclass(frozen=True)
class Recv:
    """A wait for a message, then CPU seconds that take it in."""

    span: Span
    seconds: float
    key: Hashable


Operation = Compute | Collective | Send | Recv
Program = Sequence[Operation]


@dataclass(frozen=True)
class RankSpan:
    """One operation of one rank, waiting included: seconds from the start of the step."""

    rank: int
    span: Span
    start: float
    stop: float


@dataclass(frozen=True)
class SharedRun:
    """Result of a simulation."""

    seconds: float
    cpu_seconds: tuple[float, ...]
    spans: tuple[RankSpan, ...]


def all_reduce(
    span: Span, members: Sequence[int], seconds: float, numbers: float, rank: int
) -> list[Operation]:
    """Return the operations of a rank in an all-reduce over gloo's ring.

    The ring is passed twice: to add up, and to distribute the sum.

    Args:
        members: ranks of the group, in the order of the group; more than one.
        numbers: count of numbers that are added up. If there are many, all ranks pass some on at
            any time. If there is one, only one rank is active at a time.
    """
    group = tuple(members)
    if numbers > 1:
        return [Collective(span, seconds, group)]
    ranks = len(group)
    hops = 2 * (ranks - 1)
    each = seconds * ranks / (2 * hops)
    operations: list[Operation] = []
    for hop in range(hops):
        if group[hop % ranks] == rank:
            operations.append(Send(span, each, (group, hop)))
        if group[(hop + 1) % ranks] == rank:
            operations.append(Recv(span, each, (group, hop)))
    return operations


def run_shared(programs: Sequence[Program], cores: float) -> SharedRun:
    """Simulate the programs of all ranks on shared cores.

    Args:
        cores: CPU seconds per second of all ranks together. A rank gets at most one.

    Raises:
        ValueError: there are no cores, or a rank waits indefinitely.
    """
    if cores <= 0:
        raise ValueError(f"cores is {cores}; it must be more than 0.")
    run = _SharedCores(programs)
    while run.working:
        run.advance(min(1.0, cores / len(run.working)))
    stuck = [rank for rank, program in enumerate(programs) if run.place[rank] < len(program)]
    if stuck:
        span = programs[stuck[0]][run.place[stuck[0]]].span
        raise ValueError(f"Rank {stuck[0]} waits indefinitely in '{span}'.")
    cpu = tuple(sum(operation.seconds for operation in program) for program in programs)
    return SharedRun(run.now, cpu, tuple(run.spans))


class _SharedCores:
    """State of all ranks at one point in time."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self._programs = programs
        self.now = 0.0
        self.place = [0] * len(programs)
        self.spans: list[RankSpan] = []
        self.working: dict[int, float] = {}
        self._began = [0.0] * len(programs)
        self._sent: Counter[Hashable] = Counter()
        self._receiving: dict[Hashable, int] = {}
        self._arrived: dict[tuple[int, ...], set[int]] = {}
        for rank in range(len(programs)):
            self._begin(rank)

    def advance(self, rate: float) -> None:
        """Advance to the next time at which a rank has used its CPU seconds."""
        least = min(self.working.values())
        self.now += least / rate
        ended = [rank for rank, left in self.working.items() if left <= least]
        for rank in self.working:
            self.working[rank] -= least
        for rank in ended:
            del self.working[rank]
            self._worked(rank)

    def _begin(self, rank: int) -> None:
        program = self._programs[rank]
        if self.place[rank] == len(program):
            return
        operation = program[self.place[rank]]
        self._began[rank] = self.now
        if isinstance(operation, Recv) and not self._sent[operation.key]:
            self._receiving[operation.key] = rank
            return
        self.working[rank] = operation.seconds

    def _worked(self, rank: int) -> None:
        operation = self._programs[rank][self.place[rank]]
        if isinstance(operation, Collective):
            self._join(rank, operation)
            return
        if isinstance(operation, Send):
            self._sent[operation.key] += 1
            waiting = self._receiving.pop(operation.key, None)
            if waiting is not None:
                receive = self._programs[waiting][self.place[waiting]]
                self.working[waiting] = receive.seconds
        if isinstance(operation, Recv):
            self._sent[operation.key] -= 1
        self._end(rank)

    def _join(self, rank: int, operation: Collective) -> None:
        arrived = self._arrived.setdefault(operation.members, set())
        arrived.add(rank)
        if len(arrived) == len(operation.members):
            del self._arrived[operation.members]
            for member in operation.members:
                self._end(member)

    def _end(self, rank: int) -> None:
        span = self._programs[rank][self.place[rank]].span
        self.spans.append(RankSpan(rank, span, self._began[rank], self.now))
        self.place[rank] += 1
        self._begin(rank)
