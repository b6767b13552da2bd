"""The first tensor that differs between two runs, as it should be and as it is."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from mimokit.charts import _palette
from mimokit.charts._axes import inline, layered, titled
from mimokit.units import counted

Rows = Sequence[Mapping[str, Any]]


def tensor_difference(cells: Rows, borders: Rows = ()) -> alt.HConcatChart:
    """Return a tensor as it should be and as it is, next to each other, and where they differ.

    Each has its rows and columns, with the borders of the shards.
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
