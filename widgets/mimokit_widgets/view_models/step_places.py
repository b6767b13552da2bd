"""Where the ranks stand in the picture of a step: a column per module or stage, in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mimokit.config.graph import topological_order
from mimokit.planning.types import LayoutPlan

BOX_WIDTH, BOX_HEIGHT, BOX_GAP = 164, 54, 8
CELL_WIDTH = 896.0
"""Of a narrow cell, at the least scale of the picture: four columns fit."""
NARROWEST_GUTTER, WIDEST_GUTTER = 60.0, 124.0
TOP, HEADING, STAGE = 8, 24, 14


@dataclass(frozen=True)
class Box:
    """A rank in its place.

    Attributes:
        module: that it works for here; ranks that modules share have a place for each.
        x: left edge.
        y: top edge.
    """

    rank: int
    module: str
    x: float
    y: float

    @property
    def middle(self) -> float:
        """Where arrows begin and end."""
        return self.y + BOX_HEIGHT / 2


@dataclass(frozen=True)
class Places:
    """All boxes of a layout.

    Attributes:
        boxes: (module, rank) -> its box.
        headings: (module, stage or None, x, y) above the ranks of a module or stage.
    """

    boxes: Mapping[tuple[str, int], Box]
    headings: tuple[tuple[str, int | None, float, float], ...]
    width: float
    height: float


def places_of(plan: LayoutPlan) -> Places:
    """Lay the ranks out: what feeds stands left of what is fed."""
    boxes: dict[tuple[str, int], Box] = {}
    headings = []
    width = height = 0.0
    columns = _columns(plan)
    staged = {name for name, sizes in plan.modules.items() if sizes.pipeline_parallel > 1}
    heading = HEADING + STAGE * bool(staged)  # of all alike, so that ranks stand in rows
    for number, column in enumerate(columns):
        x, y = 1.0 + number * (BOX_WIDTH + _gutter(len(columns))), float(TOP)
        for module, stage, ranks in column:
            headings.append((module, stage if module in staged else None, x, y + 14))
            y += heading
            for rank in ranks:
                boxes[module, rank] = Box(rank, module, x, y)
                y += BOX_HEIGHT + BOX_GAP
            y += BOX_GAP
        width, height = max(width, x + BOX_WIDTH + 1), max(height, y)
    return Places(boxes, tuple(headings), width, height)


def _gutter(columns: int) -> float:
    left = (CELL_WIDTH - 2 - columns * BOX_WIDTH) / max(1, columns - 1)
    return min(WIDEST_GUTTER, max(NARROWEST_GUTTER, left))


def _columns(plan: LayoutPlan) -> list[list[tuple[str, int, range]]]:
    if plan.pipeline is not None and plan.deployment_mode == "heterogeneous":
        columns: dict[int, list[tuple[str, int, range]]] = {}
        for stage, ranks in zip(plan.pipeline.graph.stages, plan.pipeline.ranks, strict=True):
            columns.setdefault(stage.position, []).append((stage.module, stage.place, ranks))
        return [columns[position] for position in sorted(columns)]
    order = topological_order(plan.topology)
    language = plan.llm_module_name
    encoders = [(name, 0, plan.modules[name].ranks) for name in order if name != language]
    last = [(language, 0, plan.modules[language].ranks)]
    return [encoders, last] if encoders else [last]
