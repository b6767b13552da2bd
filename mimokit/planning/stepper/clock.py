"""Orders the steps of all ranks into ticks so that single-stepping cannot deadlock."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from mimokit.planning.pipeline import PipelinePlan
from mimokit.planning.schedule import Action, Interval, unit_timeline
from mimokit.planning.schedule.actions import Message
from mimokit.planning.types import LayoutPlan
from mimokit.step_kinds import RECEIVES, SENDS, UPDATE, StepKind


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """The planned step of a rank at a tick, with its action; None after the last micro-batch.

    Attributes:
        module: the module that it concerns; None: the whole rank.
    """

    name: StepKind
    module: str | None = None
    microbatch: int | None = None
    action: Action | None = None

    def __str__(self) -> str:
        parts = [str(self.name)]
        if self.module is not None:
            parts.append(f"of {self.module}")
        if self.microbatch is not None:
            parts.append(f"for micro-batch {self.microbatch}")
        return " ".join(parts)


@dataclass(frozen=True)
class Tick:
    """The steps that ranks take at one tick.

    Attributes:
        time: on the plan's clock, in units in which a forward takes 1 and a backward 2; without a
            pipeline, the number of the tick.
        steps: rank -> its step; ranks without an entry wait.
    """

    time: float
    steps: Mapping[int, PlannedStep]


def clock_of(plan: LayoutPlan) -> tuple[Tick, ...]:
    """Return the ticks of one optimizer step.

    At a tick every rank takes one step or none. A rank receives at the tick at which the message is
    sent or at a later one, and ranks that compute together (all of a stage, all of an encoder next
    to a pipeline, all of the world if modules share their ranks) do so at the same tick. So no rank
    ever waits for a rank that is not allowed to continue.
    """
    if plan.pipeline is not None:
        return tuple(_pipelined(plan, plan.program))
    everyone = range(plan.world_size)
    return tuple(
        Tick(float(number), dict.fromkeys(everyone, step))
        for number, step in enumerate((*_together(plan.program), *_at_the_end()))
    )


def _together(program: PipelinePlan) -> Iterator[PlannedStep]:
    # A rank skips steps that do not apply to its data: those of an encoder whose modality is
    # absent.
    for action in program.actions(0):
        if action.kind not in UPDATE:
            yield _step(program, action)


def _step(program: PipelinePlan, action: Action) -> PlannedStep:
    module = None if action.stage is None else program.graph.stages[action.stage].module
    return PlannedStep(action.kind, module, action.microbatch, action)


def _at_the_end() -> Iterator[PlannedStep]:
    for kind in (*UPDATE, StepKind.REPORT):
        yield PlannedStep(kind)


def _pipelined(plan: LayoutPlan, pipeline: PipelinePlan) -> Iterator[Tick]:
    time = 0.0
    for time, wave in _waves(pipeline):
        yield Tick(time, dict(_on_ranks(pipeline, wave)))
    stages, ranks = pipeline.graph.stages, pipeline.ranks
    lasts = [worker[-1] for worker in pipeline.graph.workers]
    modules = {rank: stages[last].module for last in lasts for rank in ranks[last]}
    time = max(time, unit_timeline(pipeline.schedule).pipeline_makespan)
    yield Tick(time, {rank: PlannedStep(StepKind.WAIT, name) for rank, name in modules.items()})
    for step in _at_the_end():
        yield Tick(time, dict.fromkeys(range(plan.world_size), step))


def _on_ranks(
    pipeline: PipelinePlan, wave: Mapping[int, Action]
) -> Iterator[tuple[int, PlannedStep]]:
    for worker, action in wave.items():
        step = _step(pipeline, action)
        for rank in pipeline.ranks[pipeline.graph.workers[worker][0]]:
            yield rank, step


def _waves(pipeline: PipelinePlan) -> Iterator[tuple[float, dict[int, Action]]]:
    """Yield (time, worker -> its next action) for actions that are due and whose message is sent.

    The simulated times of the plan determine the order; at equal times a message is sent before it
    is received, or at the same tick.
    """
    timeline = unit_timeline(pipeline.schedule)
    workers = range(len(pipeline.graph.workers))
    waiting = {worker: _timed(timeline.intervals(worker)) for worker in workers}
    sent: set[Message] = set()
    now = 0.0
    while any(waiting.values()):
        due = {worker: queue[0][1] for worker, queue in waiting.items() if queue}
        times = {worker: waiting[worker][0][0] for worker in due}
        due = {worker: action for worker, action in due.items() if times[worker] <= now}
        sent |= {action.message for action in due.values() if action.kind in SENDS}
        wave = {
            worker: action
            for worker, action in due.items()
            if _may_run(pipeline, action, due.values(), sent)
        }
        if wave:
            yield now, wave
        else:
            now = min(time for time in times.values() if time > now)
        for worker in wave:
            waiting[worker].pop(0)


def _may_run(
    pipeline: PipelinePlan, action: Action, due: Iterable[Action], sent: Collection[Message]
) -> bool:
    if action.kind in RECEIVES:
        return action.message in sent
    graph = pipeline.graph
    if action.stage not in graph.shared:
        return True
    module = graph.stages[action.stage].module
    shares = {stage.index for stage in graph.stages if stage.module == module}
    arrived = {other.stage for other in due if _together_key(other) == _together_key(action)}
    return shares <= arrived


def _together_key(action: Action) -> tuple[StepKind, int | None]:
    return action.kind, action.microbatch


def _timed(intervals: tuple[Interval, ...]) -> list[tuple[float, Action]]:
    """Return the times of a worker's actions before the update; a receive ends with its message."""
    timed, now = [], 0.0
    for interval in intervals:
        if interval.action.kind in UPDATE:
            continue
        begin = interval.stop if interval.action.kind in RECEIVES else interval.start
        now = max(now, begin)
        timed.append((now, interval.action))
    return timed
