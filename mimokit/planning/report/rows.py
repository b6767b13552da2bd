"""Headings and rows that every view of a plan shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING
from zlib import crc32

from mimokit.axes import CONFIG_FIELDS, SHOWN_AXES
from mimokit.config.errors import Problem
from mimokit.config.messages import written
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.schedule import (
    InGroups,
    Order,
    gpipe,
    interleaved,
    one_forward_one_backward,
    zero_bubble,
)
from mimokit.step_kinds import COMPUTATIONS, StepKind
from mimokit.tables import Section
from mimokit.units import bytes_text, counted, span_text

if TYPE_CHECKING:
    from mimokit.planning.pipeline import PipelinePlan
    from mimokit.planning.schedule import StageSlots, Timeline
    from mimokit.planning.types import Bridge, ColocatedBridge, DisjointBridge, LayoutPlan, Route

MODULE_HUES = ("#0072B2", "#C05500", "#007E5C", "#7F5FA8", "#56B4E9", "#E69F00")
"""After Okabe and Ito, distinct for colour-blind readers, too, and dark or light enough to be
written on with a contrast of 4.5."""
_HUE_OF = {"images": 0, "vision": 0, "language_module": 1, "language": 1, "audio": 2}

MODULE_HEADINGS = (
    "module",
    "ranks",
    *(axis.label for axis in SHOWN_AXES),
    "samples each",
    "reads data",
)
COLOCATED_HEADINGS = ("bridge", "direction", "gather groups", "forward", "backward")
DISJOINT_HEADINGS = ("bridge", "direction", "messages", "forward", "backward")

SLOTS = "tensors in a message"
PIPELINE_HEADINGS = ("stage", "ranks", "position", "warm-up", "in flight", "bubble", SLOTS)
STAGES_SHOWN = 32

_ORDER_NAMES: dict[Order, str] = {
    one_forward_one_backward: "1F1B",
    interleaved: "interleaved 1F1B",
    gpipe: "GPipe",
    zero_bubble: "ZB-H1",
}
_MEANING = {"fan_in": "fan-in", "fan_out": "fan-out"}


@dataclass(frozen=True)
class Cell:
    """One computation in a picture: `[start, stop)` on the clock."""

    microbatch: int
    kind: StepKind
    start: float
    stop: float


def module_hues(modules: Iterable[str]) -> dict[str, str]:
    """Return the colour of each module.

    It follows from the name, so that a module keeps its colour where others come or go; a name
    whose colour is taken by one before it has the next that is free.
    """
    hues = dict.fromkeys(modules, "")
    count = len(MODULE_HUES)
    for name in sorted(hues, key=lambda name: name not in _HUE_OF):
        first = _HUE_OF.get(name, crc32(name.encode()) % count)
        around = [MODULE_HUES[(first + step) % count] for step in range(count)]
        free = (hue for hue in around if hue not in hues.values())
        hues[name] = next(free, around[0])
    return hues


def plan_title(plan: LayoutPlan) -> str:
    """Return one line about the whole plan."""
    ranks = "rank" if plan.world_size == 1 else "ranks"
    batch = plan.batch
    plural = "" if batch.num_microbatches == 1 else "es"
    count = 1 if plan.replicas is None else plan.replicas.replicas
    copies = "" if count == 1 else f" in {counted(count, 'replica')}"
    return (
        f"{plan.deployment_mode} on {plan.world_size:,} {ranks}{copies} · "
        f"{counted(batch.samples_per_microbatch, 'sample')} per micro-batch × "
        f"{batch.num_microbatches:,} micro-batch{plural} = global batch of "
        f"{batch.global_batch_size:,}{' each' if copies else ''}"
    )


def rejection(problems: Iterable[Problem]) -> str:
    """Return one line about what `mimokit run` rejects of a plan, empty if it runs."""
    fields = "; ".join(
        f"{problem.module} {problem.field} {written(problem.value)}" for problem in problems
    )
    return f"`mimokit run` rejects this layout: {fields}" if fields else ""


def module_section(plan: LayoutPlan) -> Section:
    """Return a row per module, and the options of optimizers that are not those of the run."""
    rows = []
    hues = module_hues(plan.modules)
    for name, ranks in plan.modules.items():
        batch = plan.batch.modules[name]
        sizes = (getattr(ranks, CONFIG_FIELDS[axis]) for axis in SHOWN_AXES)
        loads = span_text(batch.loads)
        rows.append(
            (
                name,
                span_text(ranks.ranks),
                *(f"{size:,}" for size in sizes),
                f"{batch.micro_batch_size:,}",
                loads if loads != span_text(ranks.ranks) else "all",
            )
        )
    colors = [[hues[name]] for name in plan.modules]
    return Section("Modules", MODULE_HEADINGS, rows, _optimizer_sentences(plan), colors)


def _optimizer_sentences(plan: LayoutPlan) -> list[str]:
    words = {"lr": "learning rate", "weight_decay": "weight decay"}
    return [
        f"{name}, stepped by itself: "
        + ", ".join(f"{words[option]} {value:g}" for option, value in options.items())
        for name, options in plan.optimizer_options.items()
    ]


def bridge_section(plan: LayoutPlan) -> Section:
    """Return a row per bridge, and why those between separate ranks have their form."""
    headings = DISJOINT_HEADINGS if plan.disjoint_bridges else COLOCATED_HEADINGS
    rows = [
        (
            f"{bridge.source} → {bridge.destination}",
            _direction_text(plan, bridge),
            *(_disjoint_cells(bridge) if bridge.kind == "disjoint" else _colocated_cells(bridge)),
        )
        for bridge in plan.bridges
    ]
    reasons = [
        f"{bridge.source} → {bridge.destination}, {way}: {route.reason}"
        for bridge in plan.disjoint_bridges
        for way, route in (("forward", bridge.forward), ("backward", bridge.backward))
    ]
    return Section("Bridges, per micro-batch", headings, rows, reasons)


def pipeline_section(pipeline: PipelinePlan, hues: Mapping[str, str]) -> Section:
    """Return a row per stage under one line about the whole pipeline."""
    colors = [[hues[stage.module]] for stage in pipeline.graph.stages[:STAGES_SHOWN]]
    heading = _pipeline_title(pipeline)
    return Section(heading, PIPELINE_HEADINGS, pipeline_rows(pipeline), colors=colors)


def _pipeline_title(pipeline: PipelinePlan) -> str:
    schedule = pipeline.schedule
    order, group = schedule.order, " it"
    grouped = order if isinstance(order, InGroups) else None
    if grouped is not None:
        order, group = grouped.order, f" every {counted(grouped.size, 'micro-batch')}"
    modules = " and ".join(pipeline.around)
    around = f"; {modules} run forward before{group} and backward after{group}" if modules else ""
    name = _ORDER_NAMES.get(order, "custom order")
    makespan = timeline_of(pipeline).makespan
    return (
        f"Pipeline: {name} over {counted(pipeline.graph.total_stages, 'stage')}, "
        f"{counted(schedule.num_microbatches, 'micro-batch')}, "
        f"makespan {makespan:,g} if a forward takes 1 and a backward 2{around}"
    )


def timeline_of(pipeline: PipelinePlan) -> Timeline:
    """Return a pipeline on a clock; see `unit_timeline`."""
    from mimokit.planning.schedule import unit_timeline  # many plans have no stages

    return unit_timeline(pipeline.schedule)


def stage_names(pipeline: PipelinePlan) -> list[str]:
    """Return the name of each stage: its module, with the number of the stage if it has several."""
    modules = [stage.module for stage in pipeline.graph.stages]
    return [
        f"{stage.module} {stage.place}" if modules.count(stage.module) > 1 else stage.module
        for stage in pipeline.graph.stages
    ]


def pipeline_rows(pipeline: PipelinePlan) -> list[tuple[str, ...]]:
    """Return one row per stage, under `PIPELINE_HEADINGS`."""
    timeline, names = timeline_of(pipeline), stage_names(pipeline)
    return [
        (
            names[stage.index],
            span_text(pipeline.ranks[stage.index]),
            str(stage.position),
            str(pipeline.schedule.warmup(stage.index)),
            str(timeline.in_flight[stage.index]),
            f"{timeline.bubble[stage.index]:.1%}",
            _slots(pipeline.slots.stages[stage.index]),
        )
        for stage in pipeline.graph.stages[:STAGES_SHOWN]
    ]


def _slots(slots: StageSlots) -> str:
    by_offset = sorted(slots.offsets.items(), key=lambda item: item[1])
    counts = [(slots.counts[modality], modality) for modality, _ in by_offset]
    return ", ".join(f"{count} {modality}" for count, modality in counts if count) or "none"


def stage_cells(pipeline: PipelinePlan, until: float) -> list[list[Cell]]:
    """Return by stage the computations that begin before a time, in order."""
    timeline = timeline_of(pipeline)
    tasks = timeline.tasks
    cells: list[list[Cell]] = [[] for _ in pipeline.graph.stages]
    chosen = (~tasks.transfer & (timeline.start < until)).nonzero()[0]
    columns = (tasks.place, tasks.microbatch, tasks.kind, timeline.start, timeline.stop)
    for stage, microbatch, kind, start, stop in zip(
        *(column[chosen].tolist() for column in columns), strict=True
    ):
        cells[stage].append(Cell(microbatch, COMPUTATIONS[kind], start, stop))
    return [sorted(of_stage, key=lambda cell: cell.start) for of_stage in cells]


def place_text(ranks: ModuleRanks, rank: int) -> str:
    """Return the coordinates of a rank along dimensions larger than 1, such as tp1 dp0."""
    sizes = dict(zip(ranks.dimensions, ranks.shape, strict=True))
    place = ranks.coordinates(rank).items()
    return " ".join(f"{name}{at}" for name, at in place if sizes[name] > 1) or "whole"


def _direction_text(plan: LayoutPlan, bridge: Bridge) -> str:
    source = plan.modules[bridge.source].data_parallel
    destination = plan.modules[bridge.destination].data_parallel
    if bridge.direction != "equal":
        return f"{_MEANING[bridge.direction]}, {source:,} → {counted(destination, 'replica')}"
    if bridge.kind == "colocated":
        return "equal, nothing moves"
    return f"equal, {counted(source, 'replica')}"


def _colocated_cells(bridge: ColocatedBridge) -> tuple[str, ...]:
    return (
        _groups_text(bridge),
        bytes_text(bridge.bytes_forward),
        bytes_text(bridge.bytes_backward),
    )


def _disjoint_cells(bridge: DisjointBridge) -> tuple[str, ...]:
    moving = (t for t in bridge.forward.transfers if t.moves)
    shown = [f"{t.source_rank}→{t.destination_rank}" for t in islice(moving, 4)]
    more = " …" if bridge.forward.messages > 4 else ""
    return ", ".join(shown) + more, _route_text(bridge.forward), _route_text(bridge.backward)


def _route_text(route: Route) -> str:
    count = counted(route.messages, "message")
    return f"{route.form}: {bytes_text(route.bytes_between)} in {count}"


def _groups_text(bridge: ColocatedBridge) -> str:
    if bridge.direction == "equal":
        return "none"
    shown = [
        "[" + ", ".join(map(str, group[:4])) + (", …]" if len(group) > 4 else "]")
        for group in bridge.gather_groups[:4]
    ]
    return " ".join(shown) + (" …" if len(bridge.gather_groups) > 4 else "")
