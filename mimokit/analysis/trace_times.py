"""A trace against its plan: what stages took, and when they idled."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from mimokit.planning.pipeline import PipelinePlan
from mimokit.planning.schedule import Timeline, simulate, unit_timeline
from mimokit.planning.types import LayoutPlan
from mimokit.step_kinds import COMPUTATIONS, StepKind

STEP_TIME_COLUMNS = ("rank", "name", "module", "microbatch", "start", "stop")
"""Columns of planned steps, as charts read them."""
BUSY = {str(kind): str(kind.busy) for kind in StepKind if kind.busy is not None}
"""Step name -> forward or backward, for the steps in which a rank is busy."""


def traced_iteration(trace: pd.DataFrame, iteration: int | None = None) -> pd.DataFrame:
    """Return the steps of one iteration, its first at time 0.

    Args:
        iteration: its number; None for the one of median duration, without the first if there are
            more.

    Raises:
        ValueError: it was not traced.
    """
    traced = sorted(set(trace["iteration"]))
    if iteration is None and traced:
        iteration = _median_iteration(trace, traced[1:] or traced)
    if iteration not in traced:
        raise ValueError(f"Iteration {iteration} was not traced; traced are {traced or 'none'}.")
    chosen = trace[trace["iteration"] == iteration].reset_index(drop=True)
    chosen[["start", "stop"]] -= chosen["start"].min()
    return chosen


def _median_iteration(trace: pd.DataFrame, among: list[int]) -> int:
    per = trace[trace["iteration"].isin(among)].groupby("iteration")
    length = (per["stop"].max() - per["start"].min()).sort_values()
    return int(length.index[(len(length) - 1) // 2])


def busy_times(trace: pd.DataFrame) -> pd.DataFrame:
    """Return the busy seconds of every rank.

    Columns: rank, iteration, work (forward, backward), microbatch, seconds.
    """
    busy = trace.assign(work=trace["name"].map(BUSY), seconds=trace["stop"] - trace["start"])
    busy = busy.dropna(subset=["work", "microbatch"])
    keys = ["rank", "iteration", "work", "microbatch"]
    return busy.groupby(keys)["seconds"].sum().reset_index()


def simulate_as_measured(trace: pd.DataFrame, plan: LayoutPlan) -> Timeline:
    """Return the planned timeline with the measured times.

    Every forward (and backward) of a stage takes the median over its ranks, micro-batches and
    iterations, without the first iteration if there are more; messages take no time. If the
    measured timeline is longer than this one, the plan does not explain the difference.

    Raises:
        ValueError: the layout has no pipeline, or a stage was not traced.
    """
    pipeline = _pipeline(plan)
    trace = _of_pipeline(trace, pipeline)
    iterations = sorted(set(trace["iteration"]))
    settled = trace[trace["iteration"].isin(iterations[1:] or iterations)]
    busy = busy_times(settled)
    busy_apart = busy_times(settled[settled["name"] == StepKind.WEIGHT_GRADIENT])
    graph = pipeline.graph
    chunks = [len(graph.workers[graph.worker_of[stage.index]]) for stage in graph.stages]
    forward, backward, apart = (
        [
            _median(of, list(ranks), work) / count
            for ranks, count in zip(pipeline.ranks, chunks, strict=True)
        ]
        for of, work in ((busy, "forward"), (busy, "backward"), (busy_apart, "backward"))
    )
    apart = list(map(min, apart, backward))
    return simulate(pipeline.schedule, forward, backward, weight_gradient=apart)


def _pipeline(plan: LayoutPlan) -> PipelinePlan:
    if plan.pipeline is None:
        raise ValueError(
            f"The layout is {plan.deployment_mode} and has no pipeline: no timeline is planned."
        )
    return plan.pipeline


def _of_pipeline(trace: pd.DataFrame, pipeline: PipelinePlan) -> pd.DataFrame:
    if not pipeline.around:
        return trace
    return trace[trace["module"].notna() & ~trace["module"].isin(pipeline.around)]


def _median(busy: pd.DataFrame, ranks: list[int], work: str) -> float:
    chosen = busy[busy["rank"].isin(ranks) & (busy["work"] == work)]["seconds"]
    if chosen.empty and work == "forward":
        raise ValueError(f"The trace has no forward of the ranks {ranks}.")
    return 0.0 if chosen.empty else float(chosen.median())


def planned_steps(timeline: Timeline, plan: LayoutPlan) -> pd.DataFrame:
    """Return the forwards and backwards of a simulated timeline, by rank.

    Columns: rank, name, module, microbatch, start, stop.
    """
    rows = _planned_rows(timeline, _pipeline(plan))
    return pd.DataFrame(rows, columns=list(STEP_TIME_COLUMNS))


def _planned_rows(timeline: Timeline, pipeline: PipelinePlan) -> Iterator[tuple[object, ...]]:
    for worker in range(len(pipeline.graph.workers)):
        for interval in timeline.intervals(worker):
            action = interval.action
            if action.stage is not None and action.kind in COMPUTATIONS:
                module = pipeline.graph.stages[action.stage].module
                for rank in pipeline.ranks[action.stage]:
                    yield (
                        *(rank, action.kind, module, action.microbatch),
                        *(interval.start, interval.stop),
                    )


def bubbles(trace: pd.DataFrame, plan: LayoutPlan) -> pd.DataFrame:
    """Return the share of the pipeline's time for which every rank idled, measured and planned.

    The pipeline lasts from the first to the last work of any rank in an iteration; a rank idles
    while it does not work, see `StepKind.busy`. `measured` is the median over the iterations,
    without the first if there are more. `planned` is from `simulate_as_measured`, `on_plans_clock`
    from the plan's clock (a forward takes 1, a backward 2).

    Columns: rank, module, stage, measured, planned, on_plans_clock.

    Raises:
        ValueError: the layout has no pipeline.
    """
    pipeline = _pipeline(plan)
    timeline, planned = simulate_as_measured(trace, plan), unit_timeline(pipeline.schedule)
    measured = _measured_bubbles(_of_pipeline(trace, pipeline))
    rows = [
        {
            "rank": rank,
            "module": stage.module,
            "stage": stage.place,
            "measured": measured.get(rank, np.nan),
            "planned": timeline.bubble[stage.index],
            "on_plans_clock": planned.bubble[stage.index],
        }
        for rank, stage in pipeline.by_rank()
    ]
    return pd.DataFrame(rows)


def _measured_bubbles(trace: pd.DataFrame) -> dict[int, float]:
    iterations = sorted(set(trace["iteration"]))
    idle = []
    for iteration in iterations[1:] or iterations:
        steps = trace[trace["iteration"] == iteration]
        steps = steps[steps["name"].isin(BUSY)]
        span = steps["stop"].max() - steps["start"].min()
        busy = (steps["stop"] - steps["start"]).groupby(steps["rank"]).sum()
        idle.append(1.0 - busy / span)
    return {
        int(rank): float(share) for rank, share in pd.concat(idle, axis=1).median(axis=1).items()
    }
