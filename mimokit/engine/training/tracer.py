"""When steps begin, on clocks aligned over the ranks: traces, and waits in collectives."""

import os
import platform
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist

from mimokit.engine.device import rank_device
from mimokit.engine.inside_steps import Inside
from mimokit.engine.part_times import Mark, now, seconds_at
from mimokit.engine.steps import Step
from mimokit.planning.types import LayoutPlan
from mimokit.samples import Emit, TraceSample
from mimokit.step_kinds import StepKind

ROUNDS = 30
REFERENCE = 0


@dataclass(frozen=True)
class ClockOffset:
    """The offset of this rank's clock from that of rank 0, in seconds.

    Attributes:
        offset: to add to a time of this rank.
        error: the true offset is within `offset - error` and `offset + error`.
    """

    offset: float
    error: float


def align_clocks() -> ClockOffset:
    """Estimate the offset to the clock of rank 0 in rounds. Collective over the world.

    The shortest round counts: rank 0 read its clock between question and answer, so the middle is
    off by at most half of the round (Cristian, "Probabilistic clock synchronization", 1989).
    """
    rank = dist.get_rank()
    best = ClockOffset(0.0, 0.0)
    for asking in range(dist.get_world_size()):
        if asking != REFERENCE:
            if rank == REFERENCE:
                _answer(asking)
            elif rank == asking:
                best = _ask()
        dist.barrier()
    return best


def _answer(asking: int) -> None:
    time_here = torch.zeros(1, dtype=torch.float64, device=rank_device())
    for _ in range(ROUNDS):
        dist.recv(time_here, asking)
        time_here[0] = now()
        dist.send(time_here, asking)


def _ask() -> ClockOffset:
    message = torch.zeros(1, dtype=torch.float64, device=rank_device())
    answers = []
    for _ in range(ROUNDS):
        asked = now()
        dist.send(message, REFERENCE)
        dist.recv(message, REFERENCE)
        answered = now()
        middle = (asked + answered) / 2
        answers.append(ClockOffset(float(message) - middle, (answered - asked) / 2))
    return min(answers, key=lambda answer: answer.error)


class Tracer:
    """Records the steps of a schedule; a step ends when the next one begins.

    On CUDA the tracer synchronizes at every step, so that times are those of the work and not of
    its launch; a traced run therefore overlaps less than an untraced one.
    """

    def __init__(self, emit: Emit, clock: ClockOffset) -> None:
        self._emit = emit
        self._clock = clock
        self._rank = dist.get_rank()
        self._begun: list[tuple[Step, float]] = []
        self._inside: list[tuple[str, Step, float, float]] = []

    def heard(self, kind: Inside, begun: float, ended: float) -> None:
        """Record what took place inside the step that has begun."""
        if self._begun:
            self._inside.append((str(kind), self._begun[-1][0], begun, ended))

    def observe(self, step: Step) -> None:
        """Record that a step begins and the one before it ends."""
        self._begun.append((step, now()))

    def end_iteration(self, iteration: int) -> None:
        """Record that the last step ends, and emit the iteration."""
        offset = self._clock.offset
        times = [begun + offset for _, begun in self._begun]
        times.append(now() + offset)
        events = tuple(
            (str(step.name), step.module, step.microbatch, start, stop)
            for (step, _), (start, stop) in zip(self._begun, pairwise(times), strict=True)
        )
        inside = tuple(
            (name, step.module, step.microbatch, begun + offset, ended + offset)
            for name, step, begun, ended in self._inside
        )
        self._begun.clear()
        self._inside.clear()
        sample = TraceSample(
            rank=self._rank,
            iteration=iteration,
            clock_offset=self._clock.offset,
            clock_error=self._clock.error,
            events=events,
            inside=inside,
        )
        self._emit(sample)


Meeting = tuple[str, str | None, int | None]
"""A collective of a step: (name of the step, module, micro-batch)."""
BegunStep = tuple[Meeting, Mark]
"""A step of a schedule, which may be a collective, and when it began."""

MEETING_OF_DIRECTION: Mapping[str, StepKind] = {
    "fan_in": StepKind.GATHER,
    "fan_out": StepKind.SCATTER,
}
"""Direction of a bridge on shared ranks -> the one of its two steps that communicates."""


class Arrivals:
    """How long this rank waits for others in collectives, of one step after the other.

    A collective ends on no rank before its last rank has arrived. Ranks note when they arrive at
    the bridges on shared ranks and at the reduction of gradients. The sum over all ranks at the end
    of a step, which is there anyway, carries the times to all ranks.

    Args:
        offset: seconds from this rank's clock to that of rank 0; 0 for ranks of one host.
    """

    def __init__(self, plan: LayoutPlan, rank: int, offset: float = 0.0) -> None:
        self._rank, self._offset, self._ranks = rank, offset, plan.world_size
        self._groups: dict[Meeting, Sequence[int]] = {}
        bridges = {bridge.source: bridge for bridge in plan.colocated_bridges}
        for action in plan.program.actions(rank):
            bridge = bridges.get(action.modality or "")
            if bridge is not None and action.kind == MEETING_OF_DIRECTION.get(bridge.direction):
                group = next(group for group in bridge.gather_groups if rank in group)
                self._groups[str(action.kind), bridge.source, action.microbatch] = group
        self._groups[str(StepKind.GRAD_SYNC), None, None] = range(plan.world_size)
        self._slots = {meeting: slot for slot, meeting in enumerate(self._groups)}
        self.waits: Mapping[Meeting, float] = {}
        self.start_step([])

    def start_step(self, begun: Sequence[BegunStep]) -> None:
        """Begin an iteration; an observer of the schedule appends its steps to this list."""
        self._begun = begun

    def to_sum(self) -> list[float]:
        """Return the numbers to be summed over all ranks."""
        count = len(self._slots)
        self._own = [0.0] * count
        for meeting, mark in self._begun:
            if meeting in self._slots:
                self._own[self._slots[meeting]] = seconds_at(mark) + self._offset
        numbers = [0.0] * (self._ranks * count)
        numbers[self._rank * count : (self._rank + 1) * count] = self._own
        return numbers

    def take(self, summed: Sequence[float]) -> None:
        """Work out from the sum how long this rank waited at most in every collective: `waits`."""
        count = len(self._slots)
        self.waits = {
            meeting: max(summed[rank * count + slot] for rank in self._groups[meeting])
            - self._own[slot]
            for meeting, slot in self._slots.items()
            if self._own[slot]
        }


def clock_offset() -> float:
    """Return the seconds from this rank's clock to that of rank 0. Collective over the world."""
    # The processes of a Linux host read the same monotonic clock. On several hosts the offset is
    # estimated once; clocks of hosts drift apart by milliseconds per hour.
    return 0.0 if _on_one_host() else align_clocks().offset


def _on_one_host() -> bool:
    own = zlib.crc32(_host().encode())
    ends = torch.tensor([own, -own], dtype=torch.int64, device=rank_device())
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    return int(ends[0]) == -int(ends[1])


def _host() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return boot + os.readlink("/proc/self/ns/time")
    except OSError:
        return platform.node()
