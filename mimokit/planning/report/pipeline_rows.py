"""The words and numbers that every picture of a pipeline shows."""

from __future__ import annotations

from dataclasses import dataclass

from mimokit.planning.pipeline import PipelinePlan
from mimokit.planning.report.rows import span_text
from mimokit.planning.schedule import Order, StageSlots, gpipe, one_forward_one_backward

SLOTS = "slots from: text, audio, vision"
PIPELINE_HEADINGS = ("stage", "ranks", "position", "warm-up", "in flight", "bubble", SLOTS)
STAGES_SHOWN = 32

_ORDER_NAMES: dict[Order, str] = {one_forward_one_backward: "1F1B", gpipe: "GPipe"}


@dataclass(frozen=True)
class Cell:
    """One computation in a picture: `[start, stop)` on the clock."""

    microbatch: int
    backward: bool
    start: float
    stop: float


def pipeline_title(pipeline: PipelinePlan) -> str:
    """Return one line about the whole pipeline."""
    schedule = pipeline.schedule
    order = _ORDER_NAMES.get(schedule.order, "own order")
    modules = " and ".join(pipeline.around)
    around = f"; {modules} run forward before it and backward after it" if modules else ""
    return (
        f"Pipeline: {order} over {pipeline.graph.total_stages} stages, "
        f"{schedule.num_microbatches:,} micro-batches, {pipeline.timeline().makespan:,g} long "
        f"where a forward is 1 and a backward 2{around}"
    )


def stage_names(pipeline: PipelinePlan) -> list[str]:
    """Return what each stage is called: its module, and which of its stages where it has many."""
    modules = [stage.module for stage in pipeline.graph.stages]
    return [
        f"{stage.module} {stage.place}" if modules.count(stage.module) > 1 else stage.module
        for stage in pipeline.graph.stages
    ]


def pipeline_rows(pipeline: PipelinePlan) -> list[tuple[str, ...]]:
    """Return one row per stage, under `PIPELINE_HEADINGS`."""
    timeline, names = pipeline.timeline(), stage_names(pipeline)
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
    """Return how many slots each modality has and where they begin, as in "3 from 0"."""
    return ", ".join(
        f"{slots.counts[modality]} from {offset}" if slots.counts[modality] else "0"
        for modality, offset in slots.offsets.items()
    )


def stage_cells(pipeline: PipelinePlan, until: float) -> list[list[Cell]]:
    """Return, by stage, the computations that begin before a time, in order."""
    timeline = pipeline.timeline()
    tasks = timeline.tasks
    cells: list[list[Cell]] = [[] for _ in pipeline.graph.stages]
    chosen = (~tasks.transfer & (timeline.start < until)).nonzero()[0]
    columns = (tasks.place, tasks.microbatch, tasks.backward, timeline.start, timeline.stop)
    for stage, *cell in zip(*(column[chosen].tolist() for column in columns), strict=True):
        cells[stage].append(Cell(*cell))
    return [sorted(own, key=lambda cell: cell.start) for own in cells]
