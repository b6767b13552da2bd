"""Which lanes a timeline has: of a trace, of a plan, of a prediction, of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mimokit.analysis import planned_steps, simulate_as_measured, traced_iteration
from mimokit.charts.timeline.spans import (
    UNITS,
    NodesTimeline,
    TimelineGroup,
    of_nodes,
    of_plan,
    of_prediction,
    of_trace,
    timeline_view,
)
from mimokit.planning.types import LayoutPlan

if TYPE_CHECKING:
    import pandas as pd

    from mimokit.prediction import PredictedTimeline

WITHOUT_PLAN = "Without a plan transfers do not say their bytes and ends; give plan=."


def drawn_timeline(
    trace: pd.DataFrame | None,
    plan: LayoutPlan | None,
    prediction: PredictedTimeline | None = None,
    iteration: int | None = None,
    inside: pd.DataFrame | None = None,
    nodes: Mapping[str, NodesTimeline] | None = None,
) -> tuple[list[TimelineGroup], dict[str, Any]]:
    """Return what is drawn of a run, and the same as plain data for the browser.

    Args:
        iteration: of the trace; None for the one of median duration.
        inside: of the steps of the same trace, of `read_trace(..., inside=True)`.
    """
    steps = None if trace is None else traced_iteration(trace, iteration)
    groups = []
    if trace is not None and steps is not None:
        parts = None if inside is None else _of_iteration(inside, trace, steps)
        groups.append(of_trace(steps, plan, "measured", parts))
        if plan is not None and plan.pipeline is not None:
            planned = planned_steps(simulate_as_measured(trace, plan), plan)
            groups.append(of_trace(planned, None, "planned, with the measured medians"))
    if plan is not None and trace is None and prediction is None:
        groups.append(of_plan(plan))
    if prediction is not None:
        groups.append(of_prediction(prediction))
    groups += [of_nodes(name, timeline) for name, timeline in (nodes or {}).items()]
    unit = UNITS if trace is None and prediction is None and not nodes else "s"
    sentence = WITHOUT_PLAN if trace is not None and plan is None else ""
    return groups, timeline_view(groups, _modules(steps, plan, groups), unit, sentence)


def _of_iteration(inside: pd.DataFrame, trace: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    iteration = steps["iteration"].iloc[0]
    chosen = (inside["iteration"] == iteration) & inside["rank"].isin(steps["rank"])
    of_ranks: pd.DataFrame = inside[chosen].reset_index(drop=True)
    of_ranks[["start", "stop"]] -= trace.loc[trace["iteration"] == iteration, "start"].min()
    return of_ranks


def _modules(
    steps: pd.DataFrame | None, plan: LayoutPlan | None, groups: Sequence[TimelineGroup]
) -> list[str]:
    if plan is not None:
        return list(plan.modules)
    if steps is not None:
        return list(dict.fromkeys(steps["module"].dropna()))
    keys = dict.fromkeys(span.key for group in groups for span in group.spans)
    named = [key.rsplit(" ", 1)[0] for key in keys if key.endswith((" forward", " backward"))]
    return list(dict.fromkeys(named))
