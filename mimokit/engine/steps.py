"""Named steps of a schedule, and running a schedule to its end.

A schedule is a generator that yields a `Step` just before it runs it. Training exhausts the
generator; a tracer or a debugger observes the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from mimokit.step_kinds import StepKind

Result = TypeVar("Result")


@dataclass(frozen=True)
class Step:
    """An operation that a rank is about to run.

    Attributes:
        module: the module that it belongs to; None for the whole rank.
        microbatch: 0-based, None outside the micro-batches.
        function: the function that runs when the generator continues; None where the lines after
            its `yield` run.
    """

    name: StepKind
    module: str | None = None
    microbatch: int | None = None
    function: Callable[..., object] | None = field(default=None, compare=False)


StepGenerator = Generator[Step, None, Result]
Observer = Callable[[Step], None]


def exhaust(schedule: StepGenerator[Result], observe: Observer | None = None) -> Result:
    """Run a schedule to its end and return its result; `observe` is called before every step."""
    while True:
        try:
            step = next(schedule)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if observe is not None:
            observe(step)


def observed_by(observers: Sequence[Observer]) -> Observer | None:
    """Return one observer for several, None for none."""
    if len(observers) < 2:
        return observers[0] if observers else None

    def observe(step: Step) -> None:
        for observer in observers:
            observer(step)

    return observe
