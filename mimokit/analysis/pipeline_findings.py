"""What a pipeline costs: the bubble of its schedule, and stages that work longer than others."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mimokit.analysis.findings import SMALL, UNEVEN, Finding
from mimokit.analysis.step_figures import StepFigures, stage_times
from mimokit.planning.pipeline import PipelinePlan
from mimokit.planning.schedule import makespan, plan_schedule, simulate
from mimokit.units import counted, seconds_text, span_text


@dataclass(frozen=True)
class MeasuredPipeline:
    """The planned schedule with the measured times of its stages.

    Attributes:
        forward: seconds per micro-batch, by stage, loading included.
        room: seconds of a step in which the mean rank does not work; idle time cannot be longer.
    """

    plan: PipelinePlan
    forward: np.ndarray
    backward: np.ndarray
    weights: np.ndarray
    room: float

    @cached_property
    def work(self) -> np.ndarray:
        """Seconds that a stage works in a step."""
        seconds: np.ndarray = self.plan.schedule.num_microbatches * (self.forward + self.backward)
        return seconds

    @cached_property
    def seconds(self) -> float:
        """How long the pipeline takes with the measured times."""
        return float(makespan(self.plan.schedule, self.forward, self.backward))

    @cached_property
    def even(self) -> float:
        """How long it would take if all stages worked equally long."""
        mean = (float(times @ self.weights) for times in (self.forward, self.backward))
        return float(makespan(self.plan.schedule, *mean))

    @property
    def bubble(self) -> float:
        """Seconds that stages of equal length are idle."""
        return max(0.0, self.even - float(self.work @ self.weights)) * self._fits

    @property
    def uneven(self) -> float:
        """Seconds that the step is longer because the stages differ."""
        return max(0.0, self.seconds - self.even) * self._fits

    @property
    def _fits(self) -> float:
        """At most 1: ranks that share cores work longer together than each would alone."""
        idle = self.seconds - float(self.work @ self.weights)
        return min(1.0, self.room / idle) if idle > 0 else 1.0


def measured_pipeline(run: StepFigures) -> MeasuredPipeline | None:
    """Return the pipeline of a run with its measured times; None if it has none."""
    plan = None if run.plan is None else run.plan.pipeline
    if plan is None or run.modules.empty:
        return None
    try:
        times = [stage_times(run, ranks, plan.around) for ranks in plan.ranks]
    except KeyError:  # a module of the plan was not measured
        return None
    graph = plan.graph
    chunks = [len(graph.workers[graph.worker_of[stage.index]]) for stage in graph.stages]
    passes = plan.schedule.num_microbatches * np.array(chunks)[:, None]
    each = np.nan_to_num(np.array(times)) / passes
    sizes = np.array([len(ranks) for ranks in plan.ranks], dtype=np.float64)
    room = max(0.0, run.step - run.mean("work"))
    return MeasuredPipeline(plan, each[:, 0], each[:, 1], sizes / sizes.sum(), room)


def bubble(run: StepFigures) -> Iterator[Finding]:
    """Find that the schedule leaves stages idle while the pipeline fills and drains."""
    pipeline = measured_pipeline(run)
    if pipeline is None or run.share(pipeline.bubble) < SMALL:
        return
    schedule = pipeline.plan.schedule
    now, twice = _unit_bubble(pipeline.plan, 1), _unit_bubble(pipeline.plan, 2)
    count, stages = schedule.num_microbatches, len(schedule.graph.stages)
    yield Finding(
        "bubble",
        run.share(pipeline.bubble),
        f"The schedule leaves ranks idle for {seconds_text(pipeline.bubble)} of a step, "
        f"{run.share(pipeline.bubble):.0%}: {counted(count, 'micro-batch')} fill and drain "
        f"{counted(stages, 'stage')}.",
        f"Cut a step into {2 * count} micro-batches (idle on the clock of the plan: {twice:.0%} "
        f"instead of {now:.0%}), or use fewer stages.",
        {"seconds": pipeline.bubble, "planned": now, "stages": stages, "microbatches": count},
        run.share(pipeline.bubble),
    )


def _unit_bubble(plan: PipelinePlan, times: int) -> float:
    """Return the idle share of the mean stage on the plan's clock, with more micro-batches."""
    old = plan.schedule
    count = times * old.num_microbatches
    schedule = plan_schedule(old.graph, count, old.order, frozen=old.frozen, loading=old.loading)
    return float(np.mean(simulate(schedule).bubble))


def imbalance(run: StepFigures) -> Iterator[Finding]:
    """Find that one stage, or the ranks of one module, work longer than the others."""
    pipeline = measured_pipeline(run)
    if pipeline is None or run.share(pipeline.uneven) < SMALL:
        return
    longest, shortest = _extremes(pipeline)
    names = [_place(pipeline.plan, index) for index in (longest, shortest)]
    modules = [pipeline.plan.graph.stages[index].module for index in (longest, shortest)]
    advice = (
        f"Move layers of {modules[0]} from its longest stage to others."
        if modules[0] == modules[1]
        else f"Give {modules[0]} more of the ranks, or {modules[1]} fewer."
    )
    yield Finding(
        "imbalance",
        run.share(pipeline.uneven),
        f"Of the pipeline, {names[0]} works {seconds_text(float(pipeline.work[longest]))} in a "
        f"step and {names[1]} {seconds_text(float(pipeline.work[shortest]))}: the step is "
        f"{seconds_text(pipeline.uneven)} longer, {run.share(pipeline.uneven):.0%}, than with "
        "equal stages.",
        advice,
        {
            "seconds": pipeline.uneven,
            "longest": float(pipeline.work[longest]),
            "shortest": float(pipeline.work[shortest]),
            "stage": longest,
        },
        run.share(pipeline.uneven),
    )


def _extremes(pipeline: MeasuredPipeline) -> tuple[int, int]:
    work, stages = pipeline.work, pipeline.plan.graph.stages
    longest = int(work.argmax())
    same_module = [stage.index for stage in stages if stage.module == stages[longest].module]
    within = min(same_module, key=lambda index: float(work[index]))
    if work[longest] >= (1 + UNEVEN) * work[within]:
        return longest, within
    return longest, int(work.argmin())


def _place(plan: PipelinePlan, index: int) -> str:
    stage = plan.graph.stages[index]
    of_module = sum(other.module == stage.module for other in plan.graph.stages)
    name = f"stage {stage.place} of {stage.module}" if of_module > 1 else stage.module
    ranks = plan.ranks[index]
    return f"{name} (rank{'s' if len(ranks) > 1 else ''} {span_text(ranks)})"
