"""A plan as tables, which a terminal and a notebook show alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mimokit.axes import Axis
from mimokit.planning.replicas import strategies
from mimokit.planning.report.frames import frame_section
from mimokit.planning.report.rows import (
    STAGES_SHOWN,
    Cell,
    bridge_section,
    module_hues,
    module_section,
    pipeline_section,
    place_text,
    rejection,
    stage_cells,
    stage_names,
    title,
)
from mimokit.step_kinds import StepKind
from mimokit.tables import Section
from mimokit.units import samples_text

if TYPE_CHECKING:
    from mimokit.planning.pipeline import PipelinePlan
    from mimokit.planning.report.planned import Estimates
    from mimokit.planning.types import LayoutPlan

RANKS_SHOWN = 32
UNITS_SHOWN = 84
IDLE, BACKWARD, WEIGHT_GRADIENT = "·", "◂", "▾"


def plan_sections(plan: LayoutPlan, estimates: Estimates) -> Iterator[Section]:
    """Yield the title, modules, bridges, pipeline, frames, strategy and ranks of a plan."""
    yield Section(title(plan), sentences=list(filter(None, [rejection(estimates.rejected)])))
    yield module_section(plan)
    if plan.bridges:
        yield bridge_section(plan)
    if plan.pipeline is not None:
        hues = module_hues(plan.modules)
        yield pipeline_section(plan.pipeline, hues)
        yield _order_section(plan.pipeline, hues)
    yield from map(frame_section, estimates.frames)
    if plan.replicas is not None:
        yield strategies().strategy_section(plan.replicas, estimates)
    yield _rank_section(plan.of_replica(0))


def _order_section(pipeline: PipelinePlan, hues: dict[str, str]) -> Section:
    """Return a line per stage: a forward is the last digit of its micro-batch."""
    whole = int(pipeline.timeline().makespan)
    until = min(whole, UNITS_SHOWN)
    stages = pipeline.graph.stages[:STAGES_SHOWN]
    cells = stage_cells(pipeline, until)[:STAGES_SHOWN]
    orders = [_units(of_stage, until) + "…" * (until < whole) for of_stage in cells]
    apart = f", {WEIGHT_GRADIENT} gradients of weights" if pipeline.schedule.split else ""
    cut = f"; the first {until} of {whole:,} units" if until < whole else ""
    return Section(
        f"Order of micro-batches, {BACKWARD} backward{apart}{cut}",
        ("stage", "order"),
        list(zip(stage_names(pipeline), orders, strict=False)),
        colors=[[hues[stage.module]] * 2 for stage in stages],
        aligned=("order",),
    )


def _units(cells: list[Cell], shown: int) -> str:
    units = [IDLE] * (shown + 1)
    for cell in cells:
        of_kind = BACKWARD if cell.kind == StepKind.BACKWARD else WEIGHT_GRADIENT
        number = str(cell.microbatch % 10)
        begin, length = int(cell.start), round(cell.stop - cell.start)
        units[begin] = number if cell.kind == StepKind.FORWARD or length > 1 else of_kind
        if cell.kind == StepKind.BACKWARD and length > 1:
            units[begin + 1] = BACKWARD
    return "".join(units[:shown])


def _rank_section(plan: LayoutPlan) -> Section:
    rows, colors = [], []
    hues = module_hues(plan.modules)
    for rank in range(min(plan.world_size, RANKS_SHOWN)):
        cells, fills = [str(rank)], [""]
        for name, ranks in plan.modules.items():
            is_on = rank in ranks.ranks
            samples = plan.batch.modules[name].samples[rank] if is_on else (0, 0)
            cells.append(f"{place_text(ranks, rank)} · {samples_text(samples)}" if is_on else "")
            even = is_on and ranks.coordinates(rank)[Axis.DATA] % 2 == 0
            fills.append(hues[name] if even else "")
        rows.append(cells)
        colors.append(fills)
    hidden = plan.world_size - RANKS_SHOWN
    more = [f"… and {hidden:,} more ranks in the same pattern"] if hidden > 0 else []
    heading = "Ranks: place in the module, samples computed"
    return Section(heading, ("rank", *plan.modules), rows, more, colors)
