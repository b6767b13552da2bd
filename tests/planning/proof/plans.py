"""Faults that are planted in plans: what each changes, and in which layouts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from mimokit.config import ExperimentConfig
from mimokit.config.runtime import ZERO_BUBBLE
from mimokit.planning.bridges.routes import Route, Transfer
from mimokit.planning.layout import checked_config, plan_checked
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


Ranges = Mapping[int, tuple[int, int]]
Move = Callable[[int, int], tuple[int, int]]


def _of_one(ranges: Ranges, place: int, move: Move | None) -> Ranges:
    """Return the samples of ranks, of which one has others; None: it has none."""
    changed = dict(ranges)
    rank = sorted(changed)[place]
    start, stop = changed.pop(rank)
    return changed if move is None else {**ranges, rank: move(start, stop)}


def _later(start: int, stop: int) -> tuple[int, int]:
    return start + 1, stop + 1


def _shorter(start: int, stop: int) -> tuple[int, int]:
    return start, stop - 1


def _with_batch(plan: LayoutPlan, module: str, **changes: Any) -> LayoutPlan:
    modules = {**plan.batch.modules, module: replace(plan.batch.modules[module], **changes)}
    return replace(plan, batch=replace(plan.batch, modules=modules))


def _samples(
    module: str, attribute: str, place: int, move: Move | None, plan: LayoutPlan
) -> LayoutPlan:
    ranges = getattr(plan.batch.modules[module], attribute)
    return _with_batch(plan, module, **{attribute: _of_one(ranges, place, move)})


def _not_read(module: str, plan: LayoutPlan) -> LayoutPlan:
    return _with_batch(plan, module, loads=plan.batch.modules[module].loads[:-1])


def _microbatch_size(plan: LayoutPlan) -> LayoutPlan:
    size = plan.batch.modules[LANGUAGE].micro_batch_size
    return _with_batch(plan, LANGUAGE, micro_batch_size=size + 1)


def _microbatches(plan: LayoutPlan) -> LayoutPlan:
    batch = replace(plan.batch, num_microbatches=plan.batch.num_microbatches + 1)
    return replace(plan, batch=batch)


def _grid(name: str, plan: LayoutPlan, **changes: Any) -> LayoutPlan:
    return replace(plan, modules={**plan.modules, name: replace(plan.modules[name], **changes)})


def _other_shape(module: str, plan: LayoutPlan) -> LayoutPlan | None:
    shape = plan.modules[module].shape
    other = (shape[2], shape[1], shape[0], shape[3])
    return None if other == shape else _grid(module, plan, shape=other)


def _offset(module: str, plan: LayoutPlan) -> LayoutPlan:
    return _grid(module, plan, rank_offset=plan.modules[module].rank_offset + 1)


def _executed(plan: LayoutPlan, module: str, **sizes: Any) -> LayoutPlan:
    execution = plan.executions[module].resized(**sizes)
    return replace(plan, executions={**plan.executions, module: execution})


def _twice_the(module: str, field: str, plan: LayoutPlan) -> LayoutPlan:
    sizes = plan.executions[module].sizes
    return _executed(plan, module, **{field: 2 * getattr(sizes, field)})


def _with_bridge(plan: LayoutPlan, bridge: ColocatedBridge | DisjointBridge) -> LayoutPlan:
    return replace(plan, bridges=(bridge, *plan.bridges[1:]))


def _colocated(
    change: Callable[[ColocatedBridge], ColocatedBridge], plan: LayoutPlan
) -> LayoutPlan | None:
    bridge = plan.bridges[0]
    if not isinstance(bridge, ColocatedBridge) or bridge.direction == "equal":
        return None
    return _with_bridge(plan, change(bridge))


def _gathered(change: Callable[..., Any], plan: LayoutPlan) -> LayoutPlan | None:
    """Change the groups in which ranks gather."""
    return _colocated(
        lambda bridge: replace(bridge, gather_groups=change(*bridge.gather_groups)), plan
    )


def _kept(place: int, move: Move, plan: LayoutPlan) -> LayoutPlan | None:
    """Change the rows that a rank keeps."""
    return _colocated(
        lambda bridge: replace(bridge, pieces=_of_one(bridge.pieces, place, move)), plan
    )


def _turned(bridge: ColocatedBridge) -> ColocatedBridge:
    other = "fan_in" if bridge.direction == "fan_out" else "fan_out"
    return replace(bridge, direction=other)  # type: ignore[arg-type]


def _routed(
    way: str, change: Callable[[Route], Route | None], plan: LayoutPlan
) -> LayoutPlan | None:
    bridge = plan.bridges[0]
    if not isinstance(bridge, DisjointBridge):
        return None
    route = change(getattr(bridge, way))
    return None if route is None else _with_bridge(plan, replace(bridge, **{way: route}))


def _transfers(way: str, change: Callable[..., Any], plan: LayoutPlan) -> LayoutPlan | None:
    return _routed(way, lambda route: replace(route, transfers=(*change(*route.transfers),)), plan)


def _other_samples(first: Transfer, *others: Transfer) -> tuple[Transfer, ...]:
    return replace(first, start=first.start + 1, stop=first.stop + 1), *others


def _not_shared(route: Route) -> Route | None:
    return replace(route, groups=route.groups[1:]) if route.groups else None


def _with_program(plan: LayoutPlan, **changes: Any) -> LayoutPlan:
    return replace(plan, program=replace(plan.program, **changes))


def _order(make: Callable[[list[Step]], list[Step]], plan: LayoutPlan, of: int = 0) -> LayoutPlan:
    """Change the steps of one list of actions."""
    schedule = plan.program.schedule

    def order(graph: Any, worker: int, count: int) -> list[Step]:
        steps = list(schedule.order(graph, worker, count))
        return make(steps) if worker == of else steps

    return _with_program(plan, schedule=replace(schedule, order=order))


def _chunks_exchanged(plan: LayoutPlan) -> LayoutPlan | None:
    """Change the order of the chunks in each pass of the first ranks that have several."""
    workers = plan.program.graph.workers
    chunked = next((n for n, stages in enumerate(workers) if len(stages) > 1), None)
    if chunked is None or plan.deployment_mode != "heterogeneous":
        return None
    other = dict(zip(workers[chunked], workers[chunked][::-1], strict=True))

    def exchanged(steps: list[Step]) -> list[Step]:
        return [(kind, other[stage], microbatch) for kind, stage, microbatch in steps]

    return _order(exchanged, plan, of=chunked)


def _backward_first(steps: list[Step]) -> list[Step]:
    first = next((n for n, step in enumerate(steps) if step[0] == StepKind.BACKWARD), None)
    return steps if first is None else [steps[first], *steps[:first], *steps[first + 1 :]]


def _first_of(kind: StepKind, times: int, plan: LayoutPlan) -> LayoutPlan:
    """Do the first step of a kind as often."""

    def changed(steps: list[Step]) -> list[Step]:
        first = next(n for n, step in enumerate(steps) if step[0] == kind)
        return [*steps[:first], *times * [steps[first]], *steps[first + 1 :]]

    return _order(changed, plan)


def _apart(times: int, plan: LayoutPlan) -> LayoutPlan | None:
    """Change the steps that compute gradients of weights apart, where there are such."""
    split = plan.program.schedule.split
    return _first_of(StepKind.WEIGHT_GRADIENT, times, plan) if split else None


def _last_first(steps: list[Step]) -> list[Step]:
    """Run the micro-batches from the last to the first."""
    last = max(step[2] for step in steps)
    return [(kind, stage, last - microbatch) for kind, stage, microbatch in steps]


def _other_way_round(plan: LayoutPlan) -> LayoutPlan | None:
    """Let one end of a pipeline send its micro-batches from the last to the first."""
    many = plan.batch.num_microbatches > 1 and len(plan.program.graph.workers) > 1
    return _order(_last_first, plan) if many else None


def _stage_ranks(plan: LayoutPlan) -> LayoutPlan:
    first, *others = plan.program.ranks
    return _with_program(plan, ranks=(range(first.start + 1, first.stop + 1), *others))


def _frozen_program(plan: LayoutPlan) -> LayoutPlan:
    schedule = replace(plan.program.schedule, frozen=frozenset({"images"}))
    return _with_program(plan, schedule=schedule)


CHANGES: dict[str, Change] = {
    "a rank computes the next samples": partial(_samples, LANGUAGE, "samples", 0, _later),
    "a rank drops a sample": partial(_samples, LANGUAGE, "samples", -1, _shorter),
    "a rank has no samples": partial(_samples, "images", "samples", -1, None),
    "an encoder's rank is one sample off": partial(_samples, "images", "samples", -1, _later),
    "a rank reads the next samples": partial(_samples, LANGUAGE, "loaded", 0, _later),
    "a rank reads one sample": partial(
        _samples, "images", "loaded", 0, lambda start, _: (start, start + 1)
    ),
    "a rank does not read labels": partial(_not_read, LANGUAGE),
    "a rank does not read images": partial(_not_read, "images"),
    "tensor and data parallel ranks exchanged": partial(_other_shape, LANGUAGE),
    "the same in the encoder": partial(_other_shape, "images"),
    "the language model one rank further": partial(_offset, LANGUAGE),
    "the encoder one rank further": partial(_offset, "images"),
    "executed with twice the parts": partial(_twice_the, LANGUAGE, "tensor"),
    "executed with twice the replicas": partial(_twice_the, "images", "data"),
    "executed with twice the stages": partial(_twice_the, LANGUAGE, "pipeline"),
    "executed with twice the contexts": partial(_twice_the, LANGUAGE, "context"),
    "executed with twice the ranks of experts": partial(_twice_the, LANGUAGE, "expert"),
    "chunks in another order": _chunks_exchanged,
    "one micro-batch more than the program has": _microbatches,
    "micro-batches of another size": _microbatch_size,
    "no bridge": lambda plan: replace(plan, bridges=plan.bridges[1:]),
    "a group gathers in reverse order": partial(_gathered, lambda one, *rest: (one[::-1], *rest)),
    "a rank gathers twice": partial(_gathered, lambda one, *rest: ((one[0], *one[:-1]), *rest)),
    "a group misses a rank": partial(_gathered, lambda one, *rest: (*rest, one[:1])),
    "a rank keeps the next rows": partial(_kept, 0, _later),
    "a rank keeps too few rows": partial(_kept, -1, _shorter),
    "a bridge in the wrong direction": partial(_colocated, _turned),
    "a transfer is left out": partial(_transfers, "forward", lambda _, *rest: rest),
    "a transfer is done twice": partial(
        _transfers, "forward", lambda one, *rest: (one, one, *rest)
    ),
    "a transfer of other samples": partial(_transfers, "forward", _other_samples),
    "a transfer from a rank without the samples": partial(
        _transfers,
        "forward",
        lambda one, *rest: (replace(one, source_rank=one.destination_rank), *rest),
    ),
    "a gradient is left out": partial(_transfers, "backward", lambda _, *rest: rest),
    "a gradient is sent twice": partial(
        _transfers, "backward", lambda one, *rest: (one, one, *rest)
    ),
    "a gradient of other samples": partial(_transfers, "backward", _other_samples),
    "a group does not share what arrives": partial(_routed, "forward", _not_shared),
    "a backward pass is left out": partial(_first_of, StepKind.BACKWARD, 0),
    "a forward pass is done twice": partial(_first_of, StepKind.FORWARD, 2),
    "a backward pass is done twice": partial(_first_of, StepKind.BACKWARD, 2),
    "gradients of weights are left out": partial(_apart, 0),
    "gradients of weights are added twice": partial(_apart, 2),
    "a backward pass before its forward pass": partial(_order, _backward_first),
    "micro-batches in another order on one end": _other_way_round,
    "a stage on other ranks": _stage_ranks,
    "a trained encoder left out of the backward pass": _frozen_program,
    "a rank without work": lambda plan: replace(plan, world_size=plan.world_size + 1),
    "shards of states that do not divide": lambda plan: _executed(
        plan, LANGUAGE, distributed_optimizer=True, instances=3
    ),
    "experts on a number of ranks that does not divide": lambda plan: _executed(
        _grid(LANGUAGE, plan, expert_parallel=3), LANGUAGE, expert=3
    ),
}
