"""How a stepper moves: forwards, back, and on to what is asked for."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from mimokit.experiment.snapshot import StepSnapshot
from mimokit.experiment.stepping.ranks import StepperError
from mimokit.planning.stepper import PlanDifference, PlannedStep, Tick, planned_crossings
from mimokit.planning.types import LayoutPlan
from mimokit.units import counted


@dataclass(frozen=True)
class StepWanted:
    """A step that is asked for; what is None matches any."""

    rank: int | None = None
    action: str | None = None
    microbatch: int | None = None
    module: str | None = None

    def matches(self, tick: Tick) -> bool:
        """Return whether a tick has such a step."""
        steps = tick.steps
        chosen: Iterable[PlannedStep] = steps.values()
        if self.rank is not None:
            chosen = [steps[self.rank]] if self.rank in steps else []
        return any(
            self.action in (None, step.name)
            and self.microbatch in (None, step.microbatch)
            and self.module in (None, step.module)
            for step in chosen
        )

    def why_none(self, clock: Sequence[Tick], microbatches: int) -> str:
        """Return a sentence that says what there is instead."""
        asked = {
            "rank": self.rank,
            "action": self.action,
            "microbatch": self.microbatch,
            "module": self.module,
        }
        words = ", ".join(f"{name}={value!r}" for name, value in asked.items() if value is not None)
        steps = [
            step for tick in clock for each, step in tick.steps.items() if self.rank in (None, each)
        ]
        names = ", ".join(dict.fromkeys(str(step.name) for step in steps))
        who = "the ranks do" if self.rank is None else f"rank {self.rank} does"
        return (
            f"No step of an iteration matches {words or 'nothing'}: {who} {names}, "
            f"for micro-batches 0 to {microbatches - 1}."
        )


class StepMoves(ABC):
    """The steps that were done, and which of them is looked at."""

    plan: LayoutPlan
    clock: tuple[Tick, ...]

    def __init__(self) -> None:
        self._taken: list[StepSnapshot] = []
        self._position = -1
        self._breakpoints: set[int] = set()
        self._listeners: list[Callable[[], None]] = []

    @abstractmethod
    def _do_until(self, number: int) -> None:
        """Do the steps up to a number that have not been done."""

    @property
    def snapshots(self) -> tuple[StepSnapshot, ...]:
        """All steps done so far."""
        return tuple(self._taken)

    @property
    def now(self) -> StepSnapshot | None:
        """The current step, None before the first."""
        return self._taken[self._position] if self._position >= 0 else None

    @property
    def differences(self) -> tuple[PlanDifference, ...]:
        """All transfers so far that differ from the plan."""
        return tuple(difference for snapshot in self._taken for difference in snapshot.differences)

    @property
    def breakpoints(self) -> frozenset[int]:
        """Ticks of an iteration, from 0 on, at which `run_to_breakpoint` stops."""
        return frozenset(self._breakpoints)

    def as_of(self, number: int) -> Self:
        """Return this stepper with another current step, to be read: it moves nothing.

        Raises:
            StepperError: the step was not done.
        """
        self._check_done(number)
        looked = copy.copy(self)
        looked._position, looked._listeners = number, []
        return looked

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever the current step changes."""
        self._listeners.append(callback)

    # Forwards and backwards.

    def next(self, n: int = 1) -> StepSnapshot:
        """Go n steps forwards, first through those already done, and return the last.

        Raises:
            ValueError: n is less than 1.
            StepperError: the stepper has ended.
            RankError: a rank raised; names the rank and the step.
            RankDied: the process of a rank died.
        """
        if n < 1:
            raise ValueError(
                f"next goes at least 1 step forwards, not {n}; back goes the other way"
            )
        self._go_to(self._position + n)
        return self._taken[self._position]

    def back(self, n: int = 1) -> StepSnapshot:
        """Go n steps back to a recorded step; nothing is undone on the ranks.

        Raises:
            StepperError: there are fewer steps.
        """
        if not 0 < n <= self._position:
            raise StepperError(
                f"There are {counted(max(self._position, 0), 'step')} before the current one; "
                f"going {n} back is not possible."
            )
        return self.look_at(self._position - n)

    def look_at(self, number: int) -> StepSnapshot:
        """Make a step that was done the current one.

        Raises:
            StepperError: it was not done.
        """
        self._check_done(number)
        self._position = number
        self._changed()
        return self._taken[number]

    def run_until(
        self,
        *,
        rank: int | None = None,
        action: str | None = None,
        microbatch: int | None = None,
        module: str | None = None,
    ) -> StepSnapshot:
        """Go forwards until the next matching step has been done, and return it.

        Args:
            action: name of the step: "forward", "gather", "send-backward", "optimizer", ….

        Raises:
            StepperError: no step of an optimizer step matches.
        """
        wanted = StepWanted(rank, action, microbatch, module)
        number = self._next_number(wanted.matches)
        if number is None:
            raise StepperError(wanted.why_none(self.clock, self.plan.batch.num_microbatches))
        return self.next(number - self._position)

    def run_until_crossing(self) -> StepSnapshot:
        """Go forwards until a transfer between ranks; a StepperError says if there is none."""
        number = self._next_number(lambda tick: bool(planned_crossings(self.plan, tick)))
        if number is None:
            raise StepperError("The steps of this layout transfer nothing between ranks.")
        return self.next(number - self._position)

    def run_until_difference(self) -> StepSnapshot:
        """Go forwards until something differs from the plan, at most to the end of the iteration.

        Steps that were done already are looked at again, not done again.
        """
        while True:
            snapshot = self.next()
            if snapshot.differences or self._ends_iteration(snapshot.number):
                return snapshot

    def first_difference(self) -> StepSnapshot:
        """Go to the first difference of the steps done, else forwards until there is one."""
        for snapshot in self._taken:
            if snapshot.differences:
                return self.look_at(snapshot.number)
        if self._taken:
            self.look_at(len(self._taken) - 1)
        return self.run_until_difference()

    def toggle_breakpoint(self, tick: int) -> None:
        """Set a breakpoint at a tick of every iteration, or remove it.

        Raises:
            StepperError: an iteration has no such tick.
        """
        if not 0 <= tick < len(self.clock):
            raise StepperError(
                f"An iteration has no tick {tick}; its ticks are 0 to {len(self.clock) - 1}."
            )
        self._breakpoints ^= {tick}
        self._changed()

    def run_to_breakpoint(self) -> StepSnapshot:
        """Go forwards until a step with a breakpoint has been done, or the iteration has ended."""
        while True:
            snapshot = self.next()
            if snapshot.number % len(self.clock) in self._breakpoints:
                return snapshot
            if self._ends_iteration(snapshot.number):
                return snapshot

    def next_step(self, rank: int) -> PlannedStep:
        """Return the next planned step of a rank."""
        return self._next_of(rank)[1]

    def _tick(self, number: int) -> Tick:
        return self.clock[number % len(self.clock)]

    def _ends_iteration(self, number: int) -> bool:
        return number % len(self.clock) == len(self.clock) - 1

    def _next_number(self, wanted: Callable[[Tick], bool]) -> int | None:
        start = self._position + 1
        numbers = range(start, start + len(self.clock))
        return next((number for number in numbers if wanted(self._tick(number))), None)

    def _go_to(self, number: int) -> None:
        self._do_until(number)
        self._position = number
        self._changed()

    def _check_done(self, number: int) -> None:
        if not 0 <= number < len(self._taken):
            done = f"0 to {len(self._taken) - 1}" if self._taken else "none"
            raise StepperError(f"Step {number} was not done; the steps done are {done}.")

    def _next_of(self, rank: int) -> tuple[int, PlannedStep]:
        number = self._position + 1
        while rank not in self._tick(number).steps:
            number += 1
        return number, self._tick(number).steps[rank]

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()
