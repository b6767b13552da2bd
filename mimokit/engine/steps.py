"""Named steps of a schedule, and running a schedule to its end.

A schedule is a generator that yields a `Step` just before it runs it. Training exhausts the
generator; a tracer or a debugger observes the steps.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

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


class LoopWatcher(Protocol):
    """Measures a training loop that a user wrote, whose schedules have no other observer."""

    def begin(self, model: Any) -> None:
        """See the `RankModel` whose schedule begins."""

    def observe(self, step: Step) -> None:
        """See a step that begins."""

    def pause(self) -> None:
        """See that the last step has ended."""

    def count(self, model: Any, losses: Any, num_microbatches: int) -> None:
        """See the `MicrobatchLoss` of every micro-batch of a schedule."""


_watchers: list[LoopWatcher] = []
"""At most one on a rank."""


def watch_loop(watcher: LoopWatcher | None) -> None:
    """Let a watcher see the schedules on this rank from now on; None: no watcher."""
    _watchers[:] = [] if watcher is None else [watcher]


def loop_watcher() -> LoopWatcher | None:
    """Return who watches the loop on this rank."""
    return _watchers[0] if _watchers else None


def observed_by(observers: Sequence[Observer]) -> Observer | None:
    """Return one observer for several, None for none."""
    if len(observers) < 2:
        return observers[0] if observers else None

    def observe(step: Step) -> None:
        for observer in observers:
            observer(step)

    return observe
