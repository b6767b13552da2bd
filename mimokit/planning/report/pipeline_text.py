"""A pipeline on the clock, one character per unit of time."""

from __future__ import annotations

from rich.text import Text

from mimokit.planning.pipeline import PipelinePlan
from mimokit.planning.report.pipeline_rows import STAGES_SHOWN, Cell, stage_cells, stage_names

UNITS_SHOWN = 84
IDLE, BACKWARD = "·", "◂"


def timeline_to_text(pipeline: PipelinePlan, hues: dict[str, str]) -> list[Text]:
    """Return one line per stage: a forward is its micro-batch's last digit, a backward has ◂ too.

    Args:
        pipeline: what to draw, in the units in which a forward is 1 and a backward 2.
        hues: module -> its colour, as #rrggbb.
    """
    whole = int(pipeline.timeline().makespan)
    shown = min(whole, UNITS_SHOWN)
    cells = stage_cells(pipeline, shown)[:STAGES_SHOWN]
    names = stage_names(pipeline)[:STAGES_SHOWN]
    width = max(map(len, names))
    lines = []
    for stage, name, own in zip(pipeline.graph.stages, names, cells, strict=False):
        line = Text(f"{name:{width}}  ")
        line.append(_units(own, shown), style=hues[stage.module])
        line.append("…" if whole > shown else "")
        lines.append(line)
    return lines


def _units(cells: list[Cell], shown: int) -> str:
    units = [IDLE] * (shown + 1)
    for cell in cells:
        units[int(cell.start)] = str(cell.microbatch % 10)
        if cell.backward:
            units[int(cell.start) + 1] = BACKWARD
    return "".join(units[:shown])
