"""A plan with its tables and JSON, and next to them what is predicted for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from mimokit.config.errors import Problem
from mimokit.planning.report.sections import plan_sections
from mimokit.planning.report.to_json import plan_to_json
from mimokit.planning.types import LayoutPlan
from mimokit.tables import Report, Section

if TYPE_CHECKING:
    from mimokit.planning.frames.batch_frames import BatchFrames


@dataclass(frozen=True)
class Estimates:
    """What is predicted for a plan. Reports show it next to the plan; no rank reads it.

    Attributes:
        frames: what sharing the frames of a micro-batch saves, for each vision encoder of which
            the config says something about frames.
        exchange_seconds: purpose -> time of an exchange of a whole replica; None: the links
            between replicas are not known.
        strategy_bytes: bytes that a strategy between replicas keeps per parameter that a rank
            trains, without buffers; None: they are not predicted.
        rejected: what runs reject of it; see `mimokit.config.check_runnable`.
    """

    frames: tuple[BatchFrames, ...] = ()
    exchange_seconds: Mapping[str, float] | None = None
    strategy_bytes: int | None = None
    rejected: tuple[Problem, ...] = ()


NOTHING = Estimates()


@dataclass(frozen=True, eq=False, repr=False)
class PlannedLayout(LayoutPlan, Report):
    """A plan that shows itself. It equals every plan with the same decisions.

    A notebook shows it as tables; `rich.print` and `print` show it as text.
    """

    estimates: Estimates = field(default=NOTHING, kw_only=True)

    @classmethod
    def of(cls, plan: LayoutPlan, estimates: Estimates = NOTHING) -> Self:
        """Return a plan, with what is predicted for it."""
        decisions = {part.name: getattr(plan, part.name) for part in fields(LayoutPlan)}
        return cls(**decisions, estimates=estimates)

    @property
    def frames(self) -> tuple[BatchFrames, ...]:
        """The frames of a micro-batch, and what sharing them saves."""
        return self.estimates.frames

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain lists and dicts that `json.dumps` takes."""
        return plan_to_json(self, self.estimates)

    def sections(self) -> Sequence[Section]:
        """Return the plan as tables."""
        return tuple(plan_sections(self, self.estimates))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LayoutPlan):
            return NotImplemented
        names = [part.name for part in fields(LayoutPlan)]
        return all(getattr(self, name) == getattr(other, name) for name in names)
