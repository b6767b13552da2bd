"""Faults that are planted in plans: what each changes, and in which layouts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial

from mimokit.config import ExperimentConfig
from mimokit.config.runtime import ZERO_BUBBLE
from mimokit.planning.bridges.routes import Transfer
from mimokit.planning.layout import checked_config, plan_checked
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.schedule import Step
from mimokit.planning.types import ColocatedBridge, DisjointBridge, LayoutPlan
from mimokit.step_kinds import StepKind
from tests.layouts import digits_config, two_microbatches
from tests.layouts_apart import apart_config
from tests.layouts_experts import experts_config
from tests.whole_runs import experts_on_contexts

LANGUAGE = "language_module"

Change = Callable[[LayoutPlan], LayoutPlan | None]
"""Returns a wrong plan; None where the layout has nothing of the kind."""


@dataclass(frozen=True)
class PlannedFault:
    """A wrong plan of a layout."""

    layout: str
    fault: str
    plan: LayoutPlan
    config: ExperimentConfig


@cache
def layouts() -> dict[str, ExperimentConfig]:
    """Return right layouts of all modes."""
    fan_in, apart = two_microbatches()
    pipelines = digits_config((1, 1), (1, 1), num_microbatches=4).with_layout(
        "heterogeneous",
        images={"data_parallel": 2, "tensor_parallel": 2},
        language_module={"pipeline_parallel": 2, "tensor_parallel": 2, "data_parallel": 4},
    )
    found = {
        "fan-in": fan_in,
        "fan-out": digits_config((4, 1), (1, 4)),
        "equal": digits_config((2, 2), (2, 2)),
        "separate ranks": apart,
        "pipelines": pipelines,
        "weights apart": _weights_apart(pipelines),
        "experts": experts_config((1, 1, 4), (2, 1, 2)),
        "experts on contexts": experts_on_contexts(),
        "chunks": _in_chunks(),
    }
    return {name: checked_config(config) for name, config in found.items()}


def _weights_apart(pipelines: ExperimentConfig) -> ExperimentConfig:
    config = pipelines.model_copy(deep=True)
    config.runtime.pipeline_order = ZERO_BUBBLE
    return config.finalize()


def _in_chunks() -> ExperimentConfig:
    """Return a language model of 2 stages, each of 2 chunks, behind an encoder of 2 stages."""
    config = apart_config((1, 2, 1), (2, 2, 1), 4)
    config.model.module_architectures[LANGUAGE].num_layers = 4
    language = config.model.module_parallelisms[LANGUAGE]
    language.virtual_pipeline_model_parallel_size = 2
    return config.finalize()


def planted() -> Iterator[PlannedFault]:
    """Yield every fault in every layout that can have it."""
    for name, config in layouts().items():
        plan = plan_checked(config)
        for what, change in CHANGES.items():
            wrong = change(plan)
            if wrong is not None:
                yield PlannedFault(name, what, wrong, config)


Ranges = dict[int, tuple[int, int]]


def _of_one(
    module: str, attribute: str, change: Callable[[int, Ranges], None], place: int, plan: LayoutPlan
) -> LayoutPlan:
    """Change the samples of one rank in a module."""
    batch = plan.batch.modules[module]
    ranges = dict(getattr(batch, attribute))
    change(place, ranges)
    modules = {**plan.batch.modules, module: replace(batch, **{attribute: ranges})}
    return replace(plan, batch=replace(plan.batch, modules=modules))


def _one_sample(place: int, ranges: Ranges) -> None:
    rank = sorted(ranges)[place]
    start, _ = ranges[rank]
    ranges[rank] = start, start + 1


def _shifted(place: int, ranges: Ranges) -> None:
    rank = sorted(ranges)[place]
    start, stop = ranges[rank]
    ranges[rank] = start + 1, stop + 1


def _shortened(place: int, ranges: Ranges) -> None:
    rank = sorted(ranges)[place]
    start, stop = ranges[rank]
    ranges[rank] = start, stop - 1


def _missing(place: int, ranges: Ranges) -> None:
    del ranges[sorted(ranges)[place]]


def _grid(name: str, plan: LayoutPlan, **changes: object) -> LayoutPlan:
    ranks = replace(plan.modules[name], **changes)  # type: ignore[arg-type]
    return replace(plan, modules={**plan.modules, name: ranks})


def _other_shape(module: str, plan: LayoutPlan) -> LayoutPlan | None:
    shape = plan.modules[module].shape
    other = (shape[2], shape[1], shape[0], shape[3])
    return None if other == shape else _grid(module, plan, shape=other)


def _offset(module: str, plan: LayoutPlan) -> LayoutPlan:
    return _grid(module, plan, rank_offset=plan.modules[module].rank_offset + 1)


def _execution(module: str, field: str, plan: LayoutPlan) -> LayoutPlan:
    execution = plan.executions[module]
    changed = execution.resized(**{field: 2 * getattr(execution.sizes, field)})
    return replace(plan, executions={**plan.executions, module: changed})


def _microbatches(plan: LayoutPlan) -> LayoutPlan:
    batch = replace(plan.batch, num_microbatches=plan.batch.num_microbatches + 1)
    return replace(plan, batch=batch)


def _not_read(module: str, plan: LayoutPlan) -> LayoutPlan:
    batch = plan.batch.modules[module]
    modules = {**plan.batch.modules, module: replace(batch, loads=batch.loads[:-1])}
    return replace(plan, batch=replace(plan.batch, modules=modules))


def _no_bridge(plan: LayoutPlan) -> LayoutPlan:
    return replace(plan, bridges=plan.bridges[1:])


def _colocated(change: Callable[[ColocatedBridge], object], plan: LayoutPlan) -> LayoutPlan | None:
    bridge = plan.bridges[0]
    if not isinstance(bridge, ColocatedBridge) or bridge.direction == "equal":
        return None
    changed = change(bridge)
    assert isinstance(changed, ColocatedBridge)
    return replace(plan, bridges=(changed, *plan.bridges[1:]))


def _swapped_members(bridge: ColocatedBridge) -> ColocatedBridge:
    first, *others = bridge.gather_groups
    return replace(bridge, gather_groups=(first[::-1], *others))


def _mixed_groups(bridge: ColocatedBridge) -> ColocatedBridge:
    (first, *_), *others = bridge.gather_groups
    group = (first, *bridge.gather_groups[0][:-1])
    return replace(bridge, gather_groups=(group, *others))


def _missing_group(bridge: ColocatedBridge) -> ColocatedBridge:
    return replace(bridge, gather_groups=(*bridge.gather_groups[1:], bridge.gather_groups[0][:1]))


def _slices(change: object, bridge: ColocatedBridge) -> ColocatedBridge:
    kept = dict(bridge.pieces)
    assert callable(change)
    change(kept)
    return replace(bridge, pieces=kept)


def _turned(bridge: ColocatedBridge) -> ColocatedBridge:
    other = "fan_in" if bridge.direction == "fan_out" else "fan_out"
    return replace(bridge, direction=other)  # type: ignore[arg-type]


def _route(way: str, change: object, plan: LayoutPlan) -> LayoutPlan | None:
    bridge = plan.bridges[0]
    if not isinstance(bridge, DisjointBridge):
        return None
    route = getattr(bridge, way)
    assert callable(change)
    transfers = change(list(route.transfers))
    changed = replace(bridge, **{way: replace(route, transfers=tuple(transfers))})
    return replace(plan, bridges=(changed, *plan.bridges[1:]))


def _groups(way: str, plan: LayoutPlan) -> LayoutPlan | None:
    bridge = plan.bridges[0]
    if not isinstance(bridge, DisjointBridge) or not getattr(bridge, way).groups:
        return None
    route = getattr(bridge, way)
    changed = replace(bridge, **{way: replace(route, groups=route.groups[1:])})
    return replace(plan, bridges=(changed, *plan.bridges[1:]))


def _first(transfers: list[Transfer], **changes: int) -> list[Transfer]:
    return [replace(transfers[0], **changes), *transfers[1:]]


def _other_samples(transfers: list[Transfer]) -> list[Transfer]:
    return _first(transfers, start=transfers[0].start + 1, stop=transfers[0].stop + 1)


def _stolen(transfers: list[Transfer]) -> list[Transfer]:
    return _first(transfers, source_rank=transfers[0].destination_rank)


def _order(make: object, plan: LayoutPlan) -> LayoutPlan | None:
    """Change the steps of the first list of actions."""
    schedule = plan.program.schedule
    before = schedule.order

    def order(graph, worker, count):  # type: ignore[no-untyped-def]
        steps = list(before(graph, worker, count))
        assert callable(make)
        return make(steps) if worker == 0 else steps

    changed = replace(schedule, order=order)
    return replace(plan, program=replace(plan.program, schedule=changed))


def _chunks_exchanged(plan: LayoutPlan) -> LayoutPlan | None:
    """Change the order of the chunks in each pass of the first ranks that have several."""
    workers, schedule = plan.program.graph.workers, plan.program.schedule
    chunked = next((n for n, stages in enumerate(workers) if len(stages) > 1), None)
    if chunked is None or plan.deployment_mode != "heterogeneous":
        return None
    stages, before = workers[chunked], schedule.order
    other = dict(zip(stages, stages[::-1], strict=True))

    def order(graph, worker, count):  # type: ignore[no-untyped-def]
        steps = list(before(graph, worker, count))
        if worker != chunked:
            return steps
        return [(kind, other[stage], microbatch) for kind, stage, microbatch in steps]

    return replace(plan, program=replace(plan.program, schedule=replace(schedule, order=order)))


def _backward_first(steps: list[Step]) -> list[Step] | None:
    first = next((n for n, step in enumerate(steps) if step[0] == StepKind.BACKWARD), None)
    return steps if first is None else [steps[first], *steps[:first], *steps[first + 1 :]]


def _without(kind: StepKind, steps: list[Step]) -> list[Step]:
    first = next(n for n, step in enumerate(steps) if step[0] == kind)
    return [*steps[:first], *steps[first + 1 :]]


def _twice(kind: StepKind, steps: list[Step]) -> list[Step]:
    first = next(n for n, step in enumerate(steps) if step[0] == kind)
    return [*steps[: first + 1], *steps[first:]]


def _apart(
    change: Callable[[StepKind, list[Step]], list[Step]], plan: LayoutPlan
) -> LayoutPlan | None:
    """Change the steps that compute gradients of weights apart, where there are such."""
    split = plan.program.schedule.split
    return _order(partial(change, StepKind.WEIGHT_GRADIENT), plan) if split else None


def _last_first(steps: list[Step]) -> list[Step]:
    """Run the micro-batches from the last to the first."""
    last = max(step[2] for step in steps)
    return [(kind, stage, last - microbatch) for kind, stage, microbatch in steps]


def _other_way_round(plan: LayoutPlan) -> LayoutPlan | None:
    """Let one end of a pipeline send its micro-batches from the last to the first."""
    many = plan.batch.num_microbatches > 1 and len(plan.program.graph.workers) > 1
    return _order(_last_first, plan) if many else None


def _deadlock(plan: LayoutPlan) -> LayoutPlan | None:
    return _order(_backward_first, plan)


def _stage_ranks(plan: LayoutPlan) -> LayoutPlan:
    first, *others = plan.program.ranks
    moved = range(first.start + 1, first.stop + 1)
    return replace(plan, program=replace(plan.program, ranks=(moved, *others)))


def _frozen_program(plan: LayoutPlan) -> LayoutPlan:
    schedule = replace(plan.program.schedule, frozen=frozenset({"images"}))
    return replace(plan, program=replace(plan.program, schedule=schedule))


def _world(plan: LayoutPlan) -> LayoutPlan:
    return replace(plan, world_size=plan.world_size + 1)


def _state_shards(plan: LayoutPlan) -> LayoutPlan:
    execution = plan.executions[LANGUAGE].resized(distributed_optimizer=True, instances=3)
    return replace(plan, executions={**plan.executions, LANGUAGE: execution})


def _experts(plan: LayoutPlan) -> LayoutPlan:
    ranks = plan.modules[LANGUAGE]
    changed: ModuleRanks = replace(ranks, expert_parallel=3)
    execution = plan.executions[LANGUAGE].resized(expert=3)
    return replace(
        plan,
        modules={**plan.modules, LANGUAGE: changed},
        executions={**plan.executions, LANGUAGE: execution},
    )


def _microbatch_size(plan: LayoutPlan) -> LayoutPlan:
    batch = plan.batch.modules[LANGUAGE]
    changed = replace(batch, micro_batch_size=batch.micro_batch_size + 1)
    modules = {**plan.batch.modules, LANGUAGE: changed}
    return replace(plan, batch=replace(plan.batch, modules=modules))


CHANGES: dict[str, Change] = {
    "a rank computes the next samples": partial(_of_one, LANGUAGE, "samples", _shifted, 0),
    "a rank drops a sample": partial(_of_one, LANGUAGE, "samples", _shortened, -1),
    "a rank has no samples": partial(_of_one, "images", "samples", _missing, -1),
    "an encoder's rank is one sample off": partial(_of_one, "images", "samples", _shifted, -1),
    "a rank reads the next samples": partial(_of_one, LANGUAGE, "loaded", _shifted, 0),
    "a rank reads one sample": partial(_of_one, "images", "loaded", _one_sample, 0),
    "a rank does not read labels": partial(_not_read, LANGUAGE),
    "a rank does not read images": partial(_not_read, "images"),
    "tensor and data parallel ranks exchanged": partial(_other_shape, LANGUAGE),
    "the same in the encoder": partial(_other_shape, "images"),
    "the language model one rank further": partial(_offset, LANGUAGE),
    "the encoder one rank further": partial(_offset, "images"),
    "executed with twice the parts": partial(_execution, LANGUAGE, "tensor"),
    "executed with twice the replicas": partial(_execution, "images", "data"),
    "executed with twice the stages": partial(_execution, LANGUAGE, "pipeline"),
    "executed with twice the contexts": partial(_execution, LANGUAGE, "context"),
    "executed with twice the ranks of experts": partial(_execution, LANGUAGE, "expert"),
    "chunks in another order": _chunks_exchanged,
    "one micro-batch more than the program has": _microbatches,
    "micro-batches of another size": _microbatch_size,
    "no bridge": _no_bridge,
    "a group gathers in reverse order": partial(_colocated, _swapped_members),
    "a rank gathers twice": partial(_colocated, _mixed_groups),
    "a group misses a rank": partial(_colocated, _missing_group),
    "a rank keeps the next rows": partial(_colocated, partial(_slices, partial(_shifted, 0))),
    "a rank keeps too few rows": partial(_colocated, partial(_slices, partial(_shortened, -1))),
    "a bridge in the wrong direction": partial(_colocated, _turned),
    "a transfer is left out": partial(_route, "forward", lambda t: t[1:]),
    "a transfer is done twice": partial(_route, "forward", lambda t: [t[0], *t]),
    "a transfer of other samples": partial(_route, "forward", _other_samples),
    "a transfer from a rank without the samples": partial(_route, "forward", _stolen),
    "a gradient is left out": partial(_route, "backward", lambda t: t[1:]),
    "a gradient is sent twice": partial(_route, "backward", lambda t: [t[0], *t]),
    "a gradient of other samples": partial(_route, "backward", _other_samples),
    "a group does not share what arrives": partial(_groups, "forward"),
    "a backward pass is left out": lambda p: _order(partial(_without, StepKind.BACKWARD), p),
    "a forward pass is done twice": lambda p: _order(partial(_twice, StepKind.FORWARD), p),
    "a backward pass is done twice": lambda p: _order(partial(_twice, StepKind.BACKWARD), p),
    "gradients of weights are left out": partial(_apart, _without),
    "gradients of weights are added twice": partial(_apart, _twice),
    "a backward pass before its forward pass": _deadlock,
    "micro-batches in another order on one end": _other_way_round,
    "a stage on other ranks": _stage_ranks,
    "a trained encoder left out of the backward pass": _frozen_program,
    "a rank without work": _world,
    "shards of states that do not divide": _state_shards,
    "experts on a number of ranks that does not divide": _experts,
}  # fmt: skip
