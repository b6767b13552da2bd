"""What charts share: tables as inline data, axes, and legends."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import altair as alt
import pandas as pd

from mimokit.analysis.table_file import records as records

LEFT = 46
"""Pixels for the labels left of a chart, so that charts below each other line up."""
MILLISECONDS = 1e3
"""In a second."""
MOST_RANKS = 64
"""Ranks up to which each has a row."""
TEXT_WIDTH = 6.5
"""Pixels per letter; a text that does not fit into its bar is elsewhere."""

ChartT = TypeVar("ChartT", bound=alt.TopLevelMixin)


def inline(rows: Iterable[Mapping[str, Any]]) -> alt.InlineData:
    """Return rows as chart data: plain Python values, and None for a missing number."""
    return alt.InlineData(
        values=[{name: _plain(value) for name, value in row.items()} for row in rows]
    )


def columns(table: pd.DataFrame, names: Sequence[str]) -> alt.InlineData:
    """Return some columns of a table as chart data; the chart stores no others."""
    return inline(records(table.loc[:, list(names)]))


def need(table: pd.DataFrame, chart: str, *names: str) -> None:
    """Reject a table that lacks a column."""
    for name in names:
        if name not in table.columns:
            raise ValueError(f"The chart {chart} needs a table with the column {name}.")


def layered(*charts: alt.Chart) -> alt.LayerChart:
    """Return charts on top of each other, the first one lowest."""
    return alt.LayerChart(layer=list(charts))


def titled(chart: ChartT, title: str, subtitle: str, description: str, **properties: Any) -> ChartT:
    """Return a chart with its texts, and with other properties such as a height."""
    complete: ChartT = chart.properties(
        title=alt.TitleParams(title, subtitle=subtitle), description=description, **properties
    )
    return complete


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def over(
    column: str, title: str, label_format: str, ticks: int = 8, scale: alt.Scale | None = None
) -> alt.X:
    """Return the horizontal axis of charts over what grows in a run; by default it begins at 0."""
    return alt.X(
        f"{column}:Q",
        title=title,
        axis=alt.Axis(grid=False, format=label_format, tickCount=ticks),
        scale=alt.Scale(zero=True, nice=False) if scale is None else scale,
    )


def iterations(column: str = "iteration") -> alt.X:
    """Return the horizontal axis of charts over the iterations of a run."""
    return over(column, "iteration", "d")


def amount(column: str, title: str, label_format: str, scale: alt.Scale | None = None) -> alt.Y:
    """Return the vertical axis of a number; by default it begins at 0."""
    return alt.Y(
        f"{column}:Q",
        title=title,
        axis=alt.Axis(format=label_format, tickCount=5, minExtent=LEFT),
        scale=alt.Scale(zero=True) if scale is None else scale,
    )


def ranks() -> alt.Y:
    """Return the vertical axis with one line per rank."""
    return lines("rank")


def lines(column: str) -> alt.Y:
    """Return the vertical axis with one line per number of a column, with its name in front."""
    labels = alt.Axis(labelExpr=f"'{column} ' + datum.value", minExtent=LEFT)
    return alt.Y(f"{column}:O", title=None, axis=labels)


def stacked(
    rows: Iterable[Mapping[str, Any]], x: alt.X, y: alt.Y, color: alt.Color, tooltip: list[Any]
) -> alt.Chart:
    """Return bars of which the parts are stacked by the rows' `order`."""
    chart: alt.Chart = (
        alt.Chart(inline(rows))
        .mark_bar()
        .encode(x=x.stack("zero"), y=y, color=color, order="order:Q", tooltip=tooltip)
    )
    return chart


def parts(
    column: str, rows: Iterable[Mapping[str, Any]], colors: Mapping[str, str], columns: int = 4
) -> alt.Color:
    """Return the colours of the parts that occur in rows, in the order of `colors`."""
    present = {row[column] for row in rows}
    shown = {part: color for part, color in colors.items() if part in present}
    return colored(column, shown, columns=columns).sort(list(shown))


def colored(
    column: str, colors: Mapping[str, str], symbol: str = "square", columns: int = 4
) -> alt.Color:
    """Return the colours of names, with a legend above the chart."""
    return alt.Color(
        f"{column}:N",
        legend=legend_above(symbol, columns),
        scale=alt.Scale(domain=list(colors), range=list(colors.values())),
    )


def legend_above(symbol: str = "square", columns: int = 4) -> alt.Legend:
    """Return a legend above its chart, where it takes no width."""
    return alt.Legend(
        orient="top", title=None, symbolType=symbol, columns=columns, offset=6, labelLimit=220
    )
