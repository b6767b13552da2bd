"""The claims about ranks: each has work and does it once, sizes agree, groups are complete."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from mimokit.axes import CONFIG_FIELDS, Axis
from mimokit.planning.execution import ModuleExecution
from mimokit.planning.proof.samples import has_backward
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.schedule import Action, ScheduleError, StageGraph
from mimokit.planning.schedule.check import check_actions
from mimokit.planning.types import LayoutPlan
from mimokit.step_kinds import COMPUTATIONS, StepKind

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


def unplaced_ranks(plan: LayoutPlan) -> Iterator[str]:
    """Yield ranks that have no work, or stages of other ranks than their module's."""
    layout_ranks = plan.world_size if plan.replicas is None else plan.replicas.layout_ranks
    used = np.zeros(layout_ranks, np.int64)
    for name, ranks in plan.modules.items():
        if ranks.ranks.start < 0 or ranks.ranks.stop > layout_ranks:
            yield (
                f"module {name!r} has ranks {ranks.ranks.start} to {ranks.ranks.stop - 1} of a "
                f"layout of {layout_ranks}"
            )
            return
        used[ranks.ranks.start : ranks.ranks.stop] += 1
    for rank in np.flatnonzero(used == 0)[:1].tolist():
        yield f"rank {rank} takes part in no module"
    if plan.deployment_mode == "heterogeneous":
        for rank in np.flatnonzero(used > 1)[:1].tolist():
            yield f"rank {rank} is in several modules that should have separate ranks"
    yield from _stages(plan)


def _stages(plan: LayoutPlan) -> Iterator[str]:
    stages, program = plan.program.graph.stages, plan.program
    if len(program.ranks) != len(stages):
        yield f"the program has ranks for {len(program.ranks)} stages, but {len(stages)} stages"
        return
    for stage, ranks in zip(stages, program.ranks, strict=True):
        outside = set(ranks) - set(plan.modules[stage.module].ranks)
        if outside:
            yield f"rank {min(outside)} works on a stage of {stage.module!r} without being in it"
    for name, module in plan.modules.items():
        own = [set(r) for s, r in zip(stages, program.ranks, strict=True) if s.module == name]
        if not own:
            continue  # its steps are part of those of the language model
        at_work = set().union(*own)
        idle = set(module.ranks) - at_work
        inside = plan.deployment_mode == "homogeneous" and name != plan.llm_module_name
        if idle and not inside:
            yield f"rank {min(idle)} of module {name!r} works on none of its stages"
    workers = program.graph.workers
    owner: dict[int, int] = {}
    for worker, indices in enumerate(workers):
        ranks_of = {program.ranks[index] for index in indices}
        if len(ranks_of) > 1:
            yield f"stages {list(indices)} should be on the same ranks, and are on {len(ranks_of)}"
        for rank in program.ranks[indices[0]]:
            if owner.setdefault(rank, worker) != worker:
                yield f"rank {rank} has two lists of actions"
                return


def differing_sizes(plan: LayoutPlan) -> Iterator[str]:
    """Yield modules whose execution has other sizes than their ranks."""
    for name, ranks in plan.modules.items():
        execution = plan.executions[name]
        for what, planned, executed in _sizes(plan, ranks, execution):
            if planned != executed:
                yield (
                    f"module {name!r} has {what} {planned} in its ranks and {executed} in its "
                    "execution"
                )


def _sizes(
    plan: LayoutPlan, ranks: ModuleRanks, execution: ModuleExecution
) -> Iterator[tuple[str, int, int]]:
    inside = plan.deployment_mode == "homogeneous" and ranks.module != plan.llm_module_name
    axes = (Axis.TENSOR, Axis.CONTEXT, Axis.DATA)
    for axis in axes if inside else (*axes, Axis.PIPELINE, Axis.EXPERT, Axis.EXPERT_TENSOR):
        field = CONFIG_FIELDS[axis]
        yield field, getattr(ranks, field), execution.size(axis)


def broken_groups(plan: LayoutPlan, actions: Sequence[Sequence[Action]]) -> Iterator[str]:
    """Yield groups of ranks that are not complete, or that compute in another order.

    Ranks that run the same passes of a module in the same order call the same collectives in the
    same order; what crosses pipeline stages are messages, which have a claim of their own.
    """
    for name, ranks in plan.modules.items():
        passes = _passes_of_rank(plan, name, actions)
        per_stage = ranks.expert_parallel * ranks.expert_tensor_parallel
        if ranks.ranks_per_stage % per_stage:
            yield f"{per_stage} ranks of experts do not divide a stage of module {name!r}"
            continue
        for grid, groups in ((ranks, _DENSE), (ranks.expert_view(), _EXPERT)):
            for axes in groups:
                members = grid.group_array(*map(str, axes))
                yield from _group_faults(name, axes, members, ranks, passes)


_DENSE = (Axis.TENSOR,), (Axis.CONTEXT,), (Axis.DATA,), (Axis.CONTEXT, Axis.DATA)
_EXPERT = (Axis.EXPERT_TENSOR,), (Axis.EXPERT,), (Axis.EXPERT_DATA,)


def _group_faults(
    name: str, axes: tuple[Axis, ...], members: np.ndarray, ranks: ModuleRanks, passes: np.ndarray
) -> Iterator[str]:
    what = f"the groups of module {name!r} over {' and '.join(map(str, axes))}"
    if not np.array_equal(np.sort(members.reshape(-1)), np.array(ranks.ranks)):
        yield f"{what} do not have every rank once"
        return
    if members.max(initial=0) >= len(passes):
        yield f"{what} have ranks beyond the world"
        return
    own = passes[members]
    unlike = np.flatnonzero((own != own[:, :1]).any(1))
    if len(unlike):
        yield f"{what}: ranks {members[unlike[0]].tolist()} run its passes in different orders"


def _passes_of_rank(
    plan: LayoutPlan, module: str, actions: Sequence[Sequence[Action]]
) -> np.ndarray:
    """Return a number for every rank: equal where the passes of a module are, -1 without any."""
    stages, numbers = plan.program.graph.stages, dict[tuple[object, ...], int]()
    numbered = np.full(plan.world_size, -1)
    for own, indices in zip(actions, plan.program.graph.workers, strict=True):
        passes = tuple(
            (action.kind, stages[action.stage].place, action.microbatch)
            for action in own
            if action.stage is not None
            and action.kind in COMPUTATIONS
            and stages[action.stage].module == module
        )
        ranks = plan.program.ranks[indices[0]]
        numbered[ranks.start : ranks.stop] = numbers.setdefault(passes, len(numbers))
    return numbered
