"""What every rank just did, and what it waits for, as a table."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from mimokit.experiment.snapshot import Moment
from mimokit.planning.stepper import PlannedStep, Tick, planned_crossings
from mimokit.planning.types import LayoutPlan


def state_table(
    plan: LayoutPlan,
    moment: Moment | None,
    coming: Tick,
    number: int,
    following: Mapping[int, tuple[int, PlannedStep]],
) -> pd.DataFrame:
    """Return a row per rank; see `Stepper.state`.

    Args:
        plan: the layout.
        moment: the step that is looked at.
        coming: the tick behind it.
        number: of that tick.
        following: rank -> (number of the tick at which it does its next step, that step).
    """
    rows = []
    for rank, (place, step) in following.items():
        record = moment.records[rank] if moment is not None else None
        modules = [name for name, ranks in plan.modules.items() if rank in ranks.ranks]
        samples = [plan.batch.modules[name].samples[rank] for name in modules]
        rows.append(
            {
                "rank": rank,
                "modules": ", ".join(modules),
                "samples": ", ".join(map(_range_text, samples)),
                "did": (record.did if record is not None else None) or "—",
                "seconds": record.seconds if record is not None else 0.0,
                "next": str(step),
                "at": place,
                "waits_for": "nobody" if place == number else _waits_for(plan, rank, step, coming),
            }
        )
    return pd.DataFrame(rows)


def _waits_for(plan: LayoutPlan, rank: int, step: PlannedStep, coming: Tick) -> str:
    """Name the ranks that send what a rank is to receive, else those whose turn it is."""
    crossings = planned_crossings(plan, Tick(0.0, {rank: step}))
    givers = sorted({crossing.source_rank for crossing, sent in crossings if not sent})
    if givers:
        return "rank " + ", ".join(map(str, givers))
    return "the plan's clock, rank " + ", ".join(map(str, sorted(coming.steps)))


def _range_text(samples: tuple[int, int]) -> str:
    start, stop = samples
    return f"{start}" if stop - start == 1 else f"{start}–{stop - 1}"
