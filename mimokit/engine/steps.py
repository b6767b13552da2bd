"""A named step of a schedule, and how a schedule is exhausted.

A schedule is a generator that yields a `Step` just before it does it. Training exhausts the
generator; a tracer or a debugger looks at the steps on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from mimokit.step_kinds import StepKind

Result = TypeVar("Result")


@dataclass(frozen=True)
class Step:
    """One thing that a rank is about to do.

    Attributes:
        name: of the table of step kinds.
        module: the module it is done for, None where it concerns the whole rank.
        microbatch: 0-based, None outside the micro-batches.
        function: what runs when the generator goes on; None where that are the lines after its
            `yield`.
    """

    name: StepKind
    module: str | None = None
    microbatch: int | None = None
    function: Callable[..., object] | None = field(default=None, compare=False)


StepGenerator = Generator[Step, None, Result]
Observer = Callable[[Step], None]


def exhaust(schedule: StepGenerator[Result], observe: Observer | None = None) -> Result:
    """Run a schedule to its end and return its result; `observe` sees every step as it begins."""
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
