"""Records begin and end of every step of an iteration, on clocks aligned over the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist

from mimokit.engine.device import rank_device
from mimokit.engine.part_times import now
from mimokit.engine.steps import Step
from mimokit.samples import Emit, TraceSample

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


def align_clocks(rounds: int = ROUNDS) -> ClockOffset:
    """Estimate the offset to the clock of rank 0 in repeated rounds. Collective over the world.

    The shortest round counts: rank 0 read its clock between question and answer, so the middle is
    off by at most half of the round (Cristian, "Probabilistic clock synchronization", 1989).
    """
    rank = dist.get_rank()
    best = ClockOffset(0.0, 0.0)
    for asking in range(dist.get_world_size()):
        if asking != REFERENCE:
            if rank == REFERENCE:
                _answer(asking, rounds)
            elif rank == asking:
                best = _ask(rounds)
        dist.barrier()
    return best


def _answer(asking: int, rounds: int) -> None:
    time_here = torch.zeros(1, dtype=torch.float64, device=rank_device())
    for _ in range(rounds):
        dist.recv(time_here, asking)
        time_here[0] = now()
        dist.send(time_here, asking)


def _ask(rounds: int) -> ClockOffset:
    message = torch.zeros(1, dtype=torch.float64, device=rank_device())
    answers = []
    for _ in range(rounds):
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

    @classmethod
    def aligned(cls, emit: Emit) -> Tracer:
        """Return a tracer whose clock is aligned with that of rank 0. Collective."""
        return cls(emit, align_clocks())

    def observe(self, step: Step) -> None:
        """Record that a step begins and the one before it ends."""
        self._begun.append((step, now()))

    def end_iteration(self, iteration: int) -> None:
        """Record that the last step ends, and emit the iteration."""
        times = [begun + self._clock.offset for _, begun in self._begun]
        times.append(now() + self._clock.offset)
        events = tuple(
            (str(step.name), step.module, step.microbatch, start, stop)
            for (step, _), (start, stop) in zip(self._begun, pairwise(times), strict=True)
        )
        self._begun.clear()
        sample = TraceSample(
            rank=self._rank,
            iteration=iteration,
            clock_offset=self._clock.offset,
            clock_error=self._clock.error,
            events=events,
        )
        self._emit(sample)
