"""What all ranks did at one tick, and the state of every rank as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from mimokit.experiment.stepping.findings import AskRows, TransferFinding, findings_of
from mimokit.planning.stepper import (
    Crossing,
    PlanDifference,
    PlannedStep,
    SeenCrossing,
    Tick,
    differences,
    planned_crossings,
)
from mimokit.planning.types import LayoutPlan
from mimokit.units import samples_text

if TYPE_CHECKING:
    from mimokit.planning.stepper.crossings import StepRecord


@dataclass(frozen=True)
class StepSnapshot:
    """What all ranks did at one tick.

    Attributes:
        number: of the tick, counted since the stepper was opened.
        findings: what came, or was sent, instead of what differs from the plan.
    """

    number: int
    iteration: int
    tick: Tick
    records: Mapping[int, StepRecord]
    differences: tuple[PlanDifference, ...]
    findings: tuple[TransferFinding, ...] = ()

    @property
    def acted(self) -> tuple[int, ...]:
        """The ranks that did something."""
        return tuple(rank for rank, record in self.records.items() if record.did is not None)

    @property
    def pieces(self) -> tuple[SeenCrossing, ...]:
        """Everything that was sent or received."""
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
        if not did:
            idle = ", ".join(dict.fromkeys(str(step) for step in self.tick.steps.values()))
            did = f"no rank had anything to do for {idle}"
        return f"step {self.number}: {did}{loss}{wrong}"

    __repr__ = __str__


def snapshot_of(
    plan: LayoutPlan,
    ticks: int,
    tick: Tick,
    records: Sequence[StepRecord],
    sent: dict[Crossing, SeenCrossing],
    ask: AskRows,
) -> StepSnapshot:
    """Compare what the ranks did at a tick with the plan.

    Args:
        sent: what was sent before and has not been received; brought up to date.
    """
    number = records[0].number
    by_rank = {record.rank: record for record in records}
    did = {rank: step for rank, step in tick.steps.items() if by_rank[rank].did is not None}
    pieces = [piece for record in records for piece in (*record.pieces, *record.inputs)]
    sent.update({piece.crossing: piece for piece in pieces if piece.sent})
    wrong = differences(planned_crossings(plan, Tick(tick.time, did)), pieces, sent)
    for piece in pieces:
        if not piece.sent:
            sent.pop(piece.crossing, None)
    wrong, findings = findings_of(wrong, pieces, ask)
    return StepSnapshot(number, number // ticks, tick, by_rank, wrong, findings)


def state_table(
    plan: LayoutPlan,
    snapshot: StepSnapshot | None,
    coming: Tick,
    number: int,
    following: Mapping[int, tuple[int, PlannedStep]],
) -> pd.DataFrame:
    """Return a row per rank; see `Stepper.state`.

    Args:
        following: rank -> (number of the tick at which it does its next step, that step).
    """
    rows = []
    for rank, (place, step) in following.items():
        record = snapshot.records[rank] if snapshot is not None else None
        modules = [name for name, ranks in plan.modules.items() if rank in ranks.ranks]
        samples = [plan.batch.modules[name].samples[rank] for name in modules]
        rows.append(
            {
                "rank": rank,
                "modules": ", ".join(modules),
                "samples": ", ".join(map(samples_text, samples)),
                "did": (record.did if record is not None else None) or "—",
                "seconds": record.seconds if record is not None else 0.0,
                "next": str(step),
                "at": place,
                "waits_for": "no rank" if place == number else _waits_for(plan, rank, step, coming),
            }
        )
    return pd.DataFrame(rows)


def _waits_for(plan: LayoutPlan, rank: int, step: PlannedStep, coming: Tick) -> str:
    crossings = planned_crossings(plan, Tick(0.0, {rank: step}))
    givers = sorted({crossing.source_rank for crossing, sent in crossings if not sent})
    if givers:
        return "rank " + ", ".join(map(str, givers))
    return "the plan's clock, rank " + ", ".join(map(str, sorted(coming.steps)))
