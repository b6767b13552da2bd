"""What all ranks did at one tick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mimokit.planning.stepper import Difference, Piece, Tick

if TYPE_CHECKING:
    from mimokit.planning.stepper.records import StepRecord


@dataclass(frozen=True)
class Moment:
    """What all ranks did at one tick.

    Attributes:
        number: of the tick, counted from the opening of the stepper.
        iteration: the optimizer step that it belongs to.
        tick: as planned.
        records: rank -> what it tells.
        differences: what crossed otherwise than planned.
    """

    number: int
    iteration: int
    tick: Tick
    records: Mapping[int, StepRecord]
    differences: tuple[Difference, ...]

    @property
    def acted(self) -> tuple[int, ...]:
        """The ranks that did something."""
        return tuple(rank for rank, record in self.records.items() if record.did is not None)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """All that was handed over or taken."""
        return tuple(piece for record in self.records.values() for piece in record.pieces)

    @property
    def result(self) -> Mapping[str, float]:
        """Loss, grad_norm and num_tokens at the end of an optimizer step, else empty."""
        return next((record.result for record in self.records.values() if record.result), {})

    def __str__(self) -> str:
        steps: dict[str, list[str]] = {}
        for rank in self.acted:
            steps.setdefault(str(self.records[rank].did), []).append(str(rank))
        did = "; ".join(f"{step} (rank {', '.join(ranks)})" for step, ranks in steps.items())
        loss = f"; loss {self.result['loss']:.6g}" if self.result else ""
        wrong = "".join(f"\n{difference}" for difference in self.differences)
        return f"step {self.number}: {did or self._idle()}{loss}{wrong}"

    __repr__ = __str__

    def _idle(self) -> str:
        steps = ", ".join(dict.fromkeys(str(step) for step in self.tick.steps.values()))
        return f"nobody had anything to do for {steps}"
