"""A pipeline on the clock, as plain HTML."""

from __future__ import annotations

from html import escape

from mimokit.planning.pipeline import PipelinePlan
from mimokit.planning.report.pipeline_rows import STAGES_SHOWN, Cell, stage_cells, stage_names

CELLS_SHOWN = 300
NUMBERED_CELLS = 200
_FORWARD, _BACKWARD = "59", "a6"  # opacities in hex; a backward is also twice as long


def timeline_to_html(pipeline: PipelinePlan, hues: dict[str, str]) -> str:
    """Return one line per stage with a block per computation, cut off where it gets too long.

    Args:
        pipeline: what to draw.
        hues: module -> its colour, as #rrggbb.
    """
    whole = pipeline.timeline().makespan
    count = 2 * len(pipeline.graph.stages) * pipeline.schedule.num_microbatches
    until = whole if count <= CELLS_SHOWN else max(12.0, whole * CELLS_SHOWN / count)
    lines = []
    cells = stage_cells(pipeline, until)[:STAGES_SHOWN]
    numbered = sum(map(len, cells)) <= NUMBERED_CELLS
    names = stage_names(pipeline)
    for stage, own in zip(pipeline.graph.stages, cells, strict=False):
        blocks = "".join(_block(cell, until, hues[stage.module], numbered) for cell in own)
        lines.append(_line(names[stage.index], blocks))
    rest = f"… the first {until:,.0f} of {whole:,g}" if until < whole else ""
    return (
        f'<div style="max-width:60em">{"".join(lines)}</div>'
        f'<div style="opacity:.75">light: forward, full: backward, by micro-batch {rest}</div>'
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
    fill = hue + (_BACKWARD if cell.backward else _FORWARD)
    way = "backward" if cell.backward else "forward"
    text = str(cell.microbatch) if numbered else ""
    style = f"position:absolute;left:{left:.2f}%;width:calc({width:.2f}% - 1px);height:100%"
    style += f";background:{fill};font-size:.75em;text-align:center"
    return f'<div style="{style}" title="{way} of micro-batch {cell.microbatch}">{text}</div>'
