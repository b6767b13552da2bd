"""Map of the ranks: the shard of each module on each rank."""

import math
from typing import Any

import altair as alt

from mimokit.axes import GRID_AXES, SIZE_FIELDS, Axis
from mimokit.charts import _palette
from mimokit.charts._axes import inline, layered, titled
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.types import LayoutPlan
from mimokit.units import counted

MOST_RANKS_IN_A_ROW = 8
MOST_RANKS_WITH_TEXT = 64

_ALWAYS_SHOWN = (Axis.TENSOR, Axis.DATA)


def rank_map(plan: LayoutPlan) -> alt.VConcatChart:
    """Return every module's ranks as cells; a rank has the same place for all modules.

    Two ranks of a module with the same shade have the same replica (data-parallel index);
    neighbouring replicas have different shades. Cells show their coordinates up to 64 ranks, tool
    tips always. Of several replicas of a layout the first one is drawn.
    """
    plan = plan.of_replica(0)
    colors = _palette.module_colors(plan.modules)
    panels = [
        _module_panel(layout, plan.world_size, colors[name])
        for name, layout in plan.modules.items()
    ]
    return titled(
        alt.vconcat(*panels, spacing=18),
        "Rank map",
        f"{counted(plan.world_size, 'rank')}, {plan.deployment_mode}; ranks of one replica share a "
        "shade, each holds the shard its tp says",
        f"Rank map of {', '.join(plan.modules)} on {counted(plan.world_size, 'rank')}",
    )


def _row(layout: ModuleRanks, rank: int, per_row: int, color: str) -> dict[str, Any]:
    coordinates = dict(layout.coordinates(rank))
    odd = coordinates[Axis.DATA] % 2 == 1
    shown = [axis for axis in GRID_AXES if layout.size_of(axis) > 1 or axis in _ALWAYS_SHOWN]
    return {
        "rank": rank,
        "column": rank % per_row,
        "row": rank // per_row,
        "module": layout.module,
        "text": "  ".join(f"{name} {coordinates[name]}" for name in shown),
        "color": _palette.tint(color, 0.62) if odd else color,
        "ink": _palette.ink_on(_palette.tint(color, 0.62) if odd else color),
        **coordinates,
    }


def _module_panel(layout: ModuleRanks, world_size: int, color: str) -> alt.LayerChart:
    with_text = world_size <= MOST_RANKS_WITH_TEXT
    per_row = min(world_size, MOST_RANKS_IN_A_ROW if with_text else _wide(world_size))
    rows_needed = math.ceil(world_size / per_row)
    cell = (82, 46) if with_text else (max(6, 900 // per_row),) * 2
    base = alt.Chart(inline(_row(layout, rank, per_row, color) for rank in layout.ranks)).encode(
        x=alt.X("column:O", axis=None, scale=alt.Scale(domain=list(range(per_row)))),
        y=alt.Y("row:O", axis=None, scale=alt.Scale(domain=list(range(rows_needed)))),
        tooltip=[
            "module:N",
            "rank:Q",
            *(
                alt.Tooltip(f"{axis}:Q", title=f"{axis} ({SIZE_FIELDS[axis]})")
                for axis in GRID_AXES
            ),
        ],
    )
    cells = base.mark_rect(
        cornerRadius=4 if with_text else 1, stroke=_palette.PAPER, strokeWidth=3 if with_text else 1
    ).encode(fill=alt.Fill("color:N", scale=None))
    layers = [cells, *(_texts(base) if with_text else [])]
    chart: alt.LayerChart = layered(*layers).properties(
        width=cell[0] * per_row,
        height=cell[1] * rows_needed,
        title=alt.TitleParams(_heading(layout), fontSize=12, offset=4),
    )
    return chart


def _texts(base: alt.Chart) -> list[alt.Chart]:
    ink = alt.Fill("ink:N", scale=None)
    return [
        base.mark_text(dy=-8, fontSize=13, fontWeight="bold").encode(text="rank:N", fill=ink),
        base.mark_text(dy=9, fontSize=11).encode(text="text:N", fill=ink),
    ]


def _heading(layout: ModuleRanks) -> str:
    sizes = [f"TP {layout.tensor_parallel}", f"DP {layout.data_parallel}"]
    if layout.context_parallel > 1:
        sizes.insert(1, f"CP {layout.context_parallel}")
    if layout.pipeline_parallel > 1:
        sizes.append(f"PP {layout.pipeline_parallel}")
    return f"{layout.module}   {' · '.join(sizes)}"


def _wide(world_size: int) -> int:
    return 1 << math.ceil(math.log2(math.sqrt(world_size) * 2))
