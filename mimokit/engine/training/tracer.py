"""Notes when every step of an iteration begins and ends on this rank."""

from __future__ import annotations

import torch.distributed as dist

from mimokit.engine.steps import Step
from mimokit.engine.training.clocks import ClockOffset, align_clocks, now
from mimokit.samples import Emit, TraceSample


class Tracer:
    """Follows the schedule; a step lasts until the next one begins.

    A step on CUDA is waited for, so that its time is that of the work and not of its launch: a
    traced run overlaps less than an untraced one.

    Args:
        emit: takes a `TraceSample` per iteration.
        clock: how this rank's clock stands to that of rank 0.
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
        """Note that a step begins, and the one before it ends."""
        self._begun.append((step, now()))

    def end_iteration(self, iteration: int) -> None:
        """Note that the last step ends, and send the iteration."""
        times = [begun + self._clock.offset for _, begun in self._begun]
        times.append(now() + self._clock.offset)
        events = tuple(
            (str(step.name), step.module, step.microbatch, start, stop)
            for (step, _), start, stop in zip(self._begun, times[:-1], times[1:], strict=True)
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
