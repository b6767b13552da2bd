"""Every rank as a cell in its node: what the rank map draws."""

from typing import Any

import numpy as np

from mimokit.axes import GRID_AXES
from mimokit.charts._palette import module_colors
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.types import LayoutPlan
from mimokit.units import counted, span_text

MOST_CELLS = 16_384
"""Ranks that are drawn; the first of them where there are more."""


def rank_cells(plan: LayoutPlan, ranks_per_node: int) -> tuple[dict[str, Any], bytes]:
    """Return the cells of a plan; of several replicas of a layout those of the first.

    Returns:
        What stands in the cells, and their coordinates as 16-bit numbers: module after module, in
        each dimension after dimension, in each rank after rank.
    """
    plan = plan.of_replica(0)
    colors = module_colors(plan.modules)
    shown = min(plan.world_size, MOST_CELLS)
    modules, buffers = [], []
    for name, ranks in plan.modules.items():
        span = range(min(ranks.ranks.start, shown), min(ranks.ranks.stop, shown))
        buffers.append(_coordinates(ranks, len(span)).tobytes())
        modules.append(
            {
                "name": name,
                "color": colors[name],
                "start": span.start,
                "count": len(span),
                "sizes": list(ranks.shape),
            }
        )
    cells = {
        "world": plan.world_size,
        "shown": shown,
        "per_node": ranks_per_node,
        "dimensions": list(map(str, GRID_AXES)),
        "modules": modules,
        "words": in_words(plan, ranks_per_node),
    }
    return cells, b"".join(buffers)


def in_words(plan: LayoutPlan, ranks_per_node: int) -> str:
    """Return the whole map as text, for those who do not see it and for those who test it."""
    plan = plan.of_replica(0)
    nodes = -(-plan.world_size // ranks_per_node)
    parts = [
        f"Rank map: {counted(plan.world_size, 'rank')} on {counted(nodes, 'node')} of up to "
        f"{ranks_per_node:,}, {plan.deployment_mode}."
    ]
    for name, ranks in plan.modules.items():
        grid = zip(GRID_AXES, ranks.shape, strict=True)
        sizes = ", ".join(f"{axis.label} {size:,}" for axis, size in grid)
        parts.append(f"{name} on ranks {span_text(ranks.ranks)}: {sizes}.")
    if plan.world_size > MOST_CELLS:
        parts.append(f"The first {MOST_CELLS:,} ranks are drawn.")
    return " ".join(parts)


def _coordinates(ranks: ModuleRanks, count: int) -> np.ndarray[Any, np.dtype[np.uint16]]:
    places = np.arange(count)
    coordinates = np.empty((len(GRID_AXES), count), dtype=np.uint16)
    for index, size in enumerate(ranks.shape):
        places, coordinates[index] = np.divmod(places, size)
    return coordinates
