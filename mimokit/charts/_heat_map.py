"""Ranks by iterations as a heat map: what the charts of this kind share."""

from __future__ import annotations

import altair as alt
import pandas as pd

from mimokit.charts import _axes
from mimokit.charts._axes import inline, records

MOST_COLUMNS = 100


def cells(table: pd.DataFrame, value: str, digits: int) -> pd.DataFrame:
    """Return the mean of a value in every cell: a rank, and one or more iterations.

    Columns: rank, first, stop, and the value. There are at most 100 columns of cells.

    Args:
        table: rank, iteration and the value.
        value: name of the column.
    """
    width = _iterations_in_a_column(table["iteration"])
    first = table["iteration"] // width * width
    means: pd.DataFrame = (
        table.assign(first=first, stop=first + width)
        .groupby(["rank", "first", "stop"], as_index=False)[[value]]
        .mean()
        .round(digits)
    )
    return means


def heat_map(
    table: pd.DataFrame, value: str, scale: alt.Scale, tooltip: str, legend: str
) -> alt.Chart:
    """Return cells as coloured rectangles.

    Args:
        table: of `cells`.
        tooltip: the format of the value in a tooltip.
        legend: its format in the legend.
    """
    gradient = alt.Legend(
        type="gradient", orient="top", title=None, format=legend, gradientLength=160,
        gradientThickness=8, offset=6,
    )  # fmt: skip
    chart: alt.Chart = (
        alt.Chart(inline(records(table)))
        .mark_rect(strokeWidth=0.7)
        .encode(
            x=_axes.iterations("first"),
            x2="stop:Q",
            y=_axes.ranks(),
            fill=alt.Fill(f"{value}:Q", scale=scale, legend=gradient),
            stroke=alt.Stroke(f"{value}:Q", scale=scale, legend=gradient),
            tooltip=["rank:O", "first:Q", alt.Tooltip(f"{value}:Q", format=tooltip)],
        )
        .properties(height=alt.Step(16))
    )
    return chart


def _iterations_in_a_column(iterations: pd.Series) -> int:
    span = int(iterations.max() - iterations.min()) + 1 if len(iterations) else 1
    return -(-span // MOST_COLUMNS)
