"""A plan as a notebook shows it: plain HTML without scripts, readable on light and dark pages.

Text and borders take the colours of the page; fills are translucent.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from mimokit.planning.ranks import ModuleRanks
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
from mimokit.step_kinds import COMPUTATIONS
from mimokit.tables import Section, html_heading
from mimokit.units import samples_text

if TYPE_CHECKING:
    from mimokit.planning.frames.batch_frames import BatchFrames
    from mimokit.planning.pipeline import PipelinePlan
    from mimokit.planning.types import Estimates, LayoutPlan

RANKS_SHOWN = 64
RANKS_A_LINE = 8
CELLS_SHOWN = 300
NUMBERED_CELLS = 200

_FILLS = ("2e", "59")  # opacities in hex: neighbouring replicas differ without colours, too
# Opacities in hex; a whole backward is also twice as long as a forward.
_OPACITIES = dict(zip(COMPUTATIONS, ("59", "a6", "e6"), strict=True))


def plan_to_html(plan: LayoutPlan, estimates: Estimates) -> str:
    """Return the plan as one `<div>`."""
    parts = [f'<div style="font-weight:600">{escape(title(plan))}</div>']
    if estimates.rejected:
        parts.append(_note(rejection(estimates.rejected)))
    hues = module_hues(plan.modules)
    dots = [_dot(hues[name]) for name in plan.modules]
    modules = module_section(plan)
    parts += [modules.to_html(dots), *map(_note, modules.sentences)]
    if plan.bridges:
        bridges = bridge_section(plan)
        parts += [bridges.to_html(), *map(_note, bridges.sentences)]
    if plan.pipeline is not None:
        parts += _pipeline(plan, plan.pipeline)
    parts += [frames_to_html(batch) for batch in estimates.frames]
    if plan.replicas is not None:
        parts.append(_with_sentences(strategy_section(plan.replicas, estimates)))
    parts.append(html_heading("Ranks: place in the module, samples computed"))
    parts += [_rank_map(plan, name, hues[name]) for name in plan.modules]
    style = "font-size:.9em;line-height:1.4;color:inherit;max-width:70em;overflow-x:auto"
    return f'<div style="{style}">{"".join(parts)}</div>'


def frames_to_html(batch: BatchFrames) -> str:
    """Return the frames of a micro-batch as a table, and below it what sharing them saves."""
    return _with_sentences(frame_section(batch))


def _with_sentences(section: Section) -> str:
    sentences = "".join(f"<div>{escape(sentence)}</div>" for sentence in section.sentences)
    return f'{section.to_html()}<div style="margin-top:.4em">{sentences}</div>'


def _pipeline(plan: LayoutPlan, pipeline: PipelinePlan) -> list[str]:
    hues = module_hues(plan.modules)
    dots = [_dot(hues[stage.module]) for stage in pipeline.graph.stages]
    return [
        pipeline_section(pipeline).to_html(dots),
        f'<div style="margin-top:.5em">{timeline_to_html(pipeline, hues)}</div>',
    ]


def timeline_to_html(pipeline: PipelinePlan, hues: dict[str, str]) -> str:
    """Return one line per stage with a block per computation, cut off if it is too long.

    Hues are module -> #rrggbb.
    """
    whole = pipeline.timeline().makespan
    count = 2 * len(pipeline.graph.stages) * pipeline.schedule.num_microbatches
    until = whole if count <= CELLS_SHOWN else max(12.0, whole * CELLS_SHOWN / count)
    lines = []
    cells = stage_cells(pipeline, until)[:STAGES_SHOWN]
    numbered = sum(map(len, cells)) <= NUMBERED_CELLS
    names = stage_names(pipeline)
    for stage, of_stage in zip(pipeline.graph.stages, cells, strict=False):
        blocks = "".join(_block(cell, until, hues[stage.module], numbered) for cell in of_stage)
        lines.append(_line(names[stage.index], blocks))
    apart = ", darkest: weights" if pipeline.schedule.split else ""
    meaning = f"light: forward, full: backward{apart}, by micro-batch"
    rest = f"… the first {until:,.0f} of {whole:,g}" if until < whole else ""
    return (
        f'<div style="max-width:60em">{"".join(lines)}</div>'
        f'<div style="opacity:.75">{meaning} {rest}</div>'
    )


def _line(name: str, blocks: str) -> str:
    return (
        '<div style="display:flex;margin:2px 0"><div style="width:11em;flex:none;overflow:hidden;'
        f'white-space:nowrap;text-overflow:ellipsis">{escape(name)}</div>'
        '<div style="position:relative;flex:auto;height:1.3em;overflow:hidden;'
        f'background:rgba(128,128,128,.1)">{blocks}</div></div>'
    )


def _block(cell: Cell, until: float, hue: str, numbered: bool) -> str:
    left, width = 100 * cell.start / until, 100 * (cell.stop - cell.start) / until
    fill = hue + _OPACITIES[cell.kind]
    text = str(cell.microbatch) if numbered else ""
    style = f"position:absolute;left:{left:.2f}%;width:calc({width:.2f}% - 1px);height:100%"
    style += f";background:{fill};font-size:.75em;text-align:center"
    return f'<div style="{style}" title="{cell.kind} of micro-batch {cell.microbatch}">{text}</div>'


def _note(text: str) -> str:
    return f'<div style="opacity:.75;font-size:.9em">{escape(text)}</div>'


def _dot(hue: str) -> str:
    style = f"display:inline-block;width:.7em;height:.7em;border-radius:.2em;background:{hue}"
    return f'<span style="{style};margin-right:.5em"></span>'


def _rank_map(plan: LayoutPlan, name: str, hue: str) -> str:
    """Return one module's ranks as a grid of cells, one fill per data-parallel replica."""
    ranks = plan.modules[name]
    columns = min(RANKS_A_LINE, ranks.size)
    cells = "".join(_rank_cell(plan, hue, ranks, rank) for rank in ranks.ranks[:RANKS_SHOWN])
    hidden = ranks.size - RANKS_SHOWN
    rest = f"… and {hidden:,} more ranks in the same pattern" if hidden > 0 else ""
    style = f"display:grid;grid-template-columns:repeat({columns},minmax(7em,1fr));gap:2px"
    return (
        f'<div style="margin:.3em 0 .1em">{_dot(hue)}{escape(name)}</div>'
        f'<div style="{style};max-width:{columns * 9}em">{cells}</div>'
        f'<div style="opacity:.75">{rest}</div>'
    )


def _rank_cell(plan: LayoutPlan, hue: str, ranks: ModuleRanks, rank: int) -> str:
    place = place_text(ranks, rank)
    span = plan.batch.modules[ranks.module].samples[rank]
    samples = f"sample{'s' if span[1] - span[0] > 1 else ''} {samples_text(span)}"
    fill = hue + _FILLS[ranks.coordinates(rank)["dp"] % 2]
    style = f"background:{fill};border-radius:.2em;padding:.15em .4em;white-space:nowrap"
    style += ";overflow:hidden"
    tip = escape(f"rank {rank}: {place}, {samples}", quote=True)
    return (
        f'<div style="{style}" title="{tip}"><b>{rank}</b> '
        f'<span style="font-size:.85em">{place}<br>{samples}</span></div>'
    )
