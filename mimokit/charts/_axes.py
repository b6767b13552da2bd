"""What charts share: tables as inline data, axes, and legends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from mimokit.analysis.table_file import records as records
from mimokit.charts import _palette

LEFT = 46
"""Pixels for the labels left of a chart, so that charts below each other line up."""
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
"""Lines beyond the number of hues differ in their dashes."""
WIDE_RANGE = 10.0
"""Times the smallest value from which an axis is logarithmic."""


def inline(rows: Iterable[Mapping[str, Any]]) -> alt.InlineData:
    """Return rows as chart data: plain Python values, and None for a missing number."""
    return alt.InlineData(
        values=[{name: _plain(value) for name, value in row.items()} for row in rows]
    )


def columns(table: pd.DataFrame, names: Sequence[str]) -> alt.InlineData:
    """Return some columns of a table as chart data; the chart stores no others."""
    return inline(records(table.loc[:, list(names)]))


def need(table: pd.DataFrame, chart: str, *names: str) -> None:
    """Reject a table that lacks a column.

    Raises:
        ValueError: one sentence that names the chart and the missing column.
    """
    for name in names:
        if name not in table.columns:
            raise ValueError(f"The chart {chart} needs a table with the column {name}.")


def layered(*charts: alt.Chart) -> alt.LayerChart:
    """Return charts on top of each other, the first one lowest."""
    return alt.LayerChart(layer=list(charts))


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def iterations(column: str = "iteration") -> alt.X:
    """Return the horizontal axis of charts over a run."""
    return alt.X(
        f"{column}:Q",
        title="iteration",
        axis=alt.Axis(grid=False, format="d", tickCount=8),
        scale=alt.Scale(zero=True, nice=False),
    )


def amount(column: str, label_format: str, top: float | None = None) -> alt.Y:
    """Return the vertical axis of a non-negative number."""
    scale = alt.Scale(zero=True) if top is None else alt.Scale(domain=[0, top])
    return alt.Y(
        f"{column}:Q",
        title=None,
        axis=alt.Axis(format=label_format, tickCount=5, minExtent=LEFT),
        scale=scale,
    )


def ranks() -> alt.Y:
    """Return the vertical axis with one line per rank."""
    return alt.Y(
        "rank:O", title=None, axis=alt.Axis(labelExpr="'rank ' + datum.value", minExtent=LEFT)
    )


def parts(
    column: str, shown: Sequence[str], colors: Mapping[str, str], columns: int = 4
) -> alt.Color:
    """Return the colours of named parts, in the order of stacking.

    Args:
        column: with the name of the part.
        shown: the parts that occur, in stacking order.
        colors: part -> colour; may have others.
        columns: of the legend.
    """
    return alt.Color(
        f"{column}:N",
        legend=legend_above(columns=columns),
        scale=alt.Scale(domain=list(shown), range=[colors[part] for part in shown]),
        sort=list(shown),
    )


def legend_above(symbol: str = "square", columns: int = 4) -> alt.Legend:
    """Return a legend above its chart, where it takes no width."""
    return alt.Legend(
        orient="top", title=None, symbolType=symbol, columns=columns, offset=6, labelLimit=220
    )


def named_lines(column: str, names: Sequence[str]) -> tuple[alt.Color, alt.StrokeDash]:
    """Return colour and dashes of a line for each name, with one legend."""
    hues = _palette.module_colors(names)
    count = len(set(hues.values()))
    dashes = [DASHES[place // count % len(DASHES)] for place in range(len(names))]
    legend = legend_above("stroke", columns=3)
    legend["symbolSize"] = 500  # long enough to show the dashes
    color = alt.Scale(domain=list(names), range=list(hues.values()))
    dash = alt.Scale(domain=list(names), range=dashes)
    return (
        alt.Color(f"{column}:N", scale=color, legend=legend),
        alt.StrokeDash(f"{column}:N", scale=dash, legend=legend),
    )


def wide_scale(values: Iterable[float]) -> alt.Scale:
    """Return a scale of numbers above 0: logarithmic if they are of different magnitudes."""
    known = [value for value in values if value > 0]
    wide = bool(known) and max(known) > WIDE_RANGE * min(known)
    return alt.Scale(type="log", nice=False) if wide else alt.Scale(zero=False)
