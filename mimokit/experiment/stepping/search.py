"""Which steps a request to a stepper matches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mimokit.planning.stepper import PlannedStep, Tick


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
