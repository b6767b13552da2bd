"""A plan as tables for a terminal."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from mimokit.planning.report.pipeline_rows import PIPELINE_HEADINGS, pipeline_rows, pipeline_title
from mimokit.planning.report.pipeline_text import timeline_to_text
from mimokit.planning.report.rows import (
    MODULE_HEADINGS,
    MODULE_HUES,
    bridge_headings,
    bridge_reasons,
    bridge_rows,
    module_rows,
    place_text,
    samples_text,
    title,
)
from mimokit.planning.types import LayoutPlan, PipelinePlan

RANKS_SHOWN = 32


def plan_to_rich(plan: LayoutPlan) -> Group:
    """Return what `rich` prints for a plan."""
    parts: list[Text | Table] = [Text(title(plan), style="bold"), _modules(plan)]
    if plan.bridges:
        parts.append(_bridges(plan))
        parts += [Text(reason, style="dim") for reason in bridge_reasons(plan)]
    if plan.pipeline is not None:
        parts += _pipeline(plan, plan.pipeline)
    parts.append(_ranks(plan))
    hidden = plan.world_size - RANKS_SHOWN
    if hidden > 0:
        parts.append(Text(f"… and {hidden:,} more ranks in the same pattern", style="dim"))
    return Group(*parts)


def plan_to_text(plan: LayoutPlan) -> str:
    """Return the same without colours, 120 columns wide."""
    target = io.StringIO()
    Console(file=target, width=120, color_system=None).print(plan_to_rich(plan))
    return target.getvalue().rstrip("\n")


def _modules(plan: LayoutPlan) -> Table:
    table = _table("Modules", MODULE_HEADINGS)
    for index, row in enumerate(module_rows(plan)):
        table.add_row(Text(row[0], style=_hue(index)), *map(Text, row[1:]))
    return table


def _bridges(plan: LayoutPlan) -> Table:
    table = _table("Bridges, per micro-batch", bridge_headings(plan))
    for row in bridge_rows(plan):
        table.add_row(*map(Text, row))
    return table


def _pipeline(plan: LayoutPlan, pipeline: PipelinePlan) -> list[Text | Table]:
    hues = {name: _hue(index) for index, name in enumerate(plan.modules)}
    table = _table(pipeline_title(pipeline), PIPELINE_HEADINGS)
    for stage, row in zip(pipeline.graph.stages, pipeline_rows(pipeline), strict=False):
        table.add_row(Text(row[0], style=hues[stage.module]), *map(Text, row[1:]))
    return [table, *timeline_to_text(pipeline, hues)]


def _ranks(plan: LayoutPlan) -> Table:
    table = _table("Ranks: place in the module, samples computed", ("rank",))
    for index, name in enumerate(plan.modules):
        table.add_column(Text(name, style=_hue(index)), no_wrap=True)
    for rank in range(min(plan.world_size, RANKS_SHOWN)):
        cells = []
        for name, ranks in plan.modules.items():
            held = rank in ranks.ranks
            samples = plan.batch.modules[name].samples
            cells.append(
                Text(f"{place_text(ranks, rank)} · {samples_text(samples[rank])}" if held else "")
            )
        table.add_row(str(rank), *cells)
    return table


def _table(heading: str, columns: tuple[str, ...]) -> Table:
    table = Table(
        title=heading, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    for name in columns:
        table.add_column(name)
    return table


def _hue(index: int) -> str:
    return MODULE_HUES[index % len(MODULE_HUES)]
