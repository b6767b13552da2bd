"""The claims about actions: every micro-batch is computed once, and no rank waits indefinitely."""

from collections import Counter
from collections.abc import Iterator, Sequence

from mimokit.planning.proof.samples import has_backward
from mimokit.planning.schedule import Action, ScheduleError, StageGraph
from mimokit.planning.schedule.check import check_actions
from mimokit.planning.types import LayoutPlan
from mimokit.step_kinds import StepKind

Actions = Sequence[Sequence[Action]]


def wrong_work(plan: LayoutPlan, actions: Actions) -> Iterator[str]:
    """Yield computations that a list of actions leaves out, repeats, or has too late."""
    schedule, graph = plan.program.schedule, plan.program.graph
    if schedule.num_microbatches != plan.batch.num_microbatches:
        yield (
            f"the program has {schedule.num_microbatches} micro-batches, the batch "
            f"{plan.batch.num_microbatches}"
        )
    for worker, own in enumerate(actions):
        counts = Counter((a.kind, a.stage, a.microbatch) for a in own)
        stages = graph.workers[worker]
        for stage in stages:
            yield from _of_stage(plan, graph, stage, counts)
        kinds = [action.kind for action in own]
        trains = any(graph.stages[stage].module not in schedule.frozen for stage in stages)
        yield from _update(kinds, trains, worker)
    yield from _not_frozen(plan)


def _of_stage(
    plan: LayoutPlan,
    graph: StageGraph,
    stage: int,
    counts: Counter[tuple[StepKind, int | None, int | None]],
) -> Iterator[str]:
    schedule = plan.program.schedule
    module = graph.stages[stage].module
    for microbatch in range(plan.batch.num_microbatches):
        absent = (module, microbatch) in schedule.absent
        forward = counts[StepKind.FORWARD, stage, microbatch]
        if forward != (not absent):
            yield f"stage {stage} computes micro-batch {microbatch} {forward} times"
        backward = counts[StepKind.BACKWARD, stage, microbatch]
        needed = not absent and has_backward(plan, module)
        if backward > 1 or (needed and not backward):
            yield f"stage {stage} has {backward} backward passes of micro-batch {microbatch}"
        apart = counts[StepKind.WEIGHT_GRADIENT, stage, microbatch]
        if apart != (stage in schedule.split and bool(schedule.work.weights[stage, microbatch])):
            yield (
                f"stage {stage} computes the gradients of weights of micro-batch {microbatch} "
                f"apart {apart} times"
            )


def _update(kinds: Sequence[StepKind], trains: bool, worker: int) -> Iterator[str]:
    for kind in (StepKind.GRAD_SYNC, StepKind.OPTIMIZER):
        if kinds.count(kind) != 1 and (trains or kind == StepKind.OPTIMIZER):
            yield f"the ranks of list {worker} have {kinds.count(kind)} actions {kind}, not 1"
            return
    if trains and kinds[-2:] != [StepKind.GRAD_SYNC, StepKind.OPTIMIZER]:
        yield f"the ranks of list {worker} do not end with reduction and update"


def _not_frozen(plan: LayoutPlan) -> Iterator[str]:
    for name, execution in plan.executions.items():
        if name in plan.program.schedule.frozen and not execution.is_frozen:
            yield f"module {name!r} is trained, but the program leaves its backward passes out"


def waits(actions: Actions) -> Iterator[str]:
    """Yield a message without its other end, or a circle of ranks that wait for each other."""
    try:
        check_actions(actions)
    except ScheduleError as error:
        yield str(error)
