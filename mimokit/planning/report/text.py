"""A plan as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

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
from mimokit.planning.report.strategy import strategy_section
from mimokit.step_kinds import StepKind
from mimokit.tables import Section, plain_text, rich_table
from mimokit.units import samples_text

if TYPE_CHECKING:
    from mimokit.planning.pipeline import PipelinePlan
    from mimokit.planning.types import Estimates, LayoutPlan

RANKS_SHOWN = 32
UNITS_SHOWN = 84
IDLE, BACKWARD, WEIGHT_GRADIENT = "·", "◂", "▾"


def plan_to_rich(plan: LayoutPlan, estimates: Estimates) -> Group:
    """Return what `rich` prints for a plan."""
    modules = module_section(plan)
    parts: list[Text | Table] = [
        Text(title(plan), style="bold"),
        *(Text(line, style="yellow") for line in [rejection(estimates.rejected)] if line),
        _coloured(modules, list(module_hues(plan.modules).values())),
        *(Text(sentence, style="dim") for sentence in modules.sentences),
    ]
    if plan.bridges:
        bridges = bridge_section(plan)
        parts += [bridges.table(), *(Text(reason, style="dim") for reason in bridges.sentences)]
    if plan.pipeline is not None:
        parts += _pipeline(plan, plan.pipeline)
    sections = [frame_section(batch) for batch in estimates.frames]
    if plan.replicas is not None:
        sections.append(strategy_section(plan.replicas, estimates))
    for section in sections:
        parts += [section.table(), *map(Text, section.sentences)]
    first = plan.of_replica(0)
    parts.append(_ranks(first))
    hidden = first.world_size - RANKS_SHOWN
    if hidden > 0:
        parts.append(Text(f"… and {hidden:,} more ranks in the same pattern", style="dim"))
    return Group(*parts)


def plan_to_text(plan: LayoutPlan, estimates: Estimates) -> str:
    """Return the text of a plan without colours, 120 columns wide."""
    return plain_text(plan_to_rich(plan, estimates))


def _coloured(section: Section, hues: Sequence[str]) -> Table:
    """Return the table with the first cell of each row in a colour."""
    table = rich_table(section.heading, section.columns)
    for hue, row in zip(hues, section.rows, strict=False):
        table.add_row(Text(row[0], style=hue), *map(Text, row[1:]))
    return table


def _pipeline(plan: LayoutPlan, pipeline: PipelinePlan) -> list[Text | Table]:
    hues = module_hues(plan.modules)
    of_stages = [hues[stage.module] for stage in pipeline.graph.stages]
    return [_coloured(pipeline_section(pipeline), of_stages), *timeline_to_text(pipeline, hues)]


def timeline_to_text(pipeline: PipelinePlan, hues: dict[str, str]) -> list[Text]:
    """Return one line per stage: a forward is its micro-batch's last digit, a backward has ◂ too.

    Where gradients of weights are apart, a backward is ◂ and they are ▾.

    Hues are module -> #rrggbb.
    """
    whole = int(pipeline.timeline().makespan)
    shown = min(whole, UNITS_SHOWN)
    cells = stage_cells(pipeline, shown)[:STAGES_SHOWN]
    names = stage_names(pipeline)[:STAGES_SHOWN]
    width = max(map(len, names))
    lines = []
    for stage, name, of_stage in zip(pipeline.graph.stages, names, cells, strict=False):
        line = Text(f"{name:{width}}  ")
        line.append(_units(of_stage, shown), style=hues[stage.module])
        line.append("…" if whole > shown else "")
        lines.append(line)
    return lines


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


def _ranks(plan: LayoutPlan) -> Table:
    table = rich_table("Ranks: place in the module, samples computed", ("rank",))
    for name, hue in module_hues(plan.modules).items():
        table.add_column(Text(name, style=hue), no_wrap=True)
    for rank in range(min(plan.world_size, RANKS_SHOWN)):
        cells = []
        for name, ranks in plan.modules.items():
            cell = ""
            if rank in ranks.ranks:
                samples = plan.batch.modules[name].samples[rank]
                cell = f"{place_text(ranks, rank)} · {samples_text(samples)}"
            cells.append(Text(cell))
        table.add_row(str(rank), *cells)
    return table
