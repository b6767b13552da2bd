"""The tensors of a step that two runs were compared at, and the first that differs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from mimokit.charts import _axes, _palette
from mimokit.charts._axes import inline, layered, titled
from mimokit.units import counted

SMALLEST = 1e-4
"""Share of what is allowed at which a difference of 0 is drawn."""

Rows = Sequence[Mapping[str, Any]]


def seams(rows: Rows) -> alt.LayerChart:
    """Return every tensor of a comparison in the order of execution, by its difference.

    The first that differs by more than is allowed has a ring; what comes after it is faded.

    Args:
        rows: of `CulpritReport.rows`.
    """
    first = next((row["number"] for row in rows if row["share"] > 1), None)
    drawn = [
        {
            **row,
            "share": max(row["share"], SMALLEST),
            "seen": "before" if first is None or row["number"] <= first else "behind",
        }
        for row in rows
    ]
    x = alt.X("number:Q", title="tensors in the order of execution", axis=alt.Axis(grid=False))
    y = alt.Y(
        "share:Q",
        title="difference / allowed",
        scale=alt.Scale(type="log", nice=False, padding=12),
        axis=alt.Axis(format="~g", tickCount=6, minExtent=_axes.LEFT),
    )
    hues = _palette.module_colors(dict.fromkeys(row["module"] for row in drawn))
    opacity = alt.Opacity(
        "seen:N", scale=alt.Scale(domain=["before", "behind"], range=[0.9, 0.2]), legend=None
    )
    points = alt.Chart(inline(drawn)).mark_circle(size=28)
    ring = alt.Chart(inline([row for row in drawn if row["number"] == first]))
    rule = alt.Chart(inline([{"share": 1.0}]))
    return titled(
        layered(
            rule.mark_rule(strokeDash=[4, 4], color=_palette.MUTED).encode(y=y),
            points.encode(
                x=x, y=y, color=_axes.colored("module", hues, "circle"), opacity=opacity,
                tooltip=_TOOLTIP,
            ),
            ring.mark_point(size=240, stroke=_palette.ACCENT, strokeWidth=2).encode(
                x=x, y=y, tooltip=_TOOLTIP
            ),
        ),
        "Tensors in the order of execution",
        "above the dashed line is more than is allowed; the ring is the first",
        f"Differences of {counted(len(rows), 'tensor')}, the first above what is allowed: {first}",
        width=640,
        height=260,
    )  # fmt: skip


_TOOLTIP = [
    "step:Q",
    "phase:N",
    "module:N",
    "operation:N",
    alt.Tooltip("difference:Q", format=".1e"),
    alt.Tooltip("allowed:Q", format=".1e"),
    "ranks:N",
]


def tensor_difference(cells: Rows, borders: Rows = ()) -> alt.HConcatChart:
    """Return a tensor as it should be and as it is, next to each other, and where they differ.

    Each has its rows and columns, with the borders of the shards.

    Args:
        cells: of `Divergence.cells`.
        borders: of `Divergence.borders`.
    """
    values = [abs(row[name]) for row in cells for name in ("right", "found")]
    most = max((value for value in values if math.isfinite(value)), default=1.0) or 1.0
    both = alt.Scale(domain=[-most, 0, most], range=list(_palette.DIVERGING))
    heat = alt.Scale(range=list(_palette.HEAT))
    panels = [
        _panel(cells, borders, "right", "as it should be", both),
        _panel(cells, borders, "found", "as it is", both),
        _panel(cells, borders, "difference", "where it differs", heat),
    ]
    ranks = sorted({row["rank"] for row in borders})
    chart: alt.HConcatChart = alt.hconcat(*panels, spacing=24).resolve_scale(color="independent")
    return titled(
        chart,
        "The first tensor that differs",
        "each cell is the entry with the largest difference; the frames are the parts of the ranks",
        f"A tensor in {counted(len(cells), 'cell')} on ranks {ranks}",
    )


def _panel(
    cells: Rows, borders: Rows, field: str, heading: str, scale: alt.Scale
) -> alt.LayerChart:
    x = alt.X("column:Q", title="columns", scale=alt.Scale(nice=False, zero=False))
    y = alt.Y(
        "row:Q", title="rows", scale=alt.Scale(reverse=True, nice=False, zero=False)
    )  # the first row on top
    color = alt.Color(f"{field}:Q", scale=scale, legend=alt.Legend(title=None))
    tooltip: list[Any] = [
        "row:Q",
        "column:Q",
        alt.Tooltip("right:Q", format=".4g"),
        alt.Tooltip("found:Q", format=".4g"),
        alt.Tooltip("difference:Q", format=".1e"),
    ]
    heat = alt.Chart(inline(list(cells))).mark_rect()
    frame = alt.Chart(inline(list(borders))).mark_rect(fillOpacity=0, stroke=_palette.ACCENT)
    panel: alt.LayerChart = layered(
        heat.encode(x=x, x2="column_stop:Q", y=y, y2="row_stop:Q", color=color, tooltip=tooltip),
        frame.encode(x=x, x2="column_stop:Q", y=y, y2="row_stop:Q", tooltip=["rank:N"]),
    ).properties(title=heading, width=220, height=240)
    return panel
