"""Axes and legends that several charts share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt

LEFT = 46
"""Pixels kept for the labels left of a chart, so that charts below each other line up."""


def iterations(column: str = "iteration") -> alt.X:
    """Return the horizontal axis of everything that is drawn over a run."""
    return alt.X(
        f"{column}:Q",
        title="iteration",
        axis=alt.Axis(grid=False, format="d", tickCount=8),
        scale=alt.Scale(zero=True, nice=False),
    )


def amount(column: str, label_format: str, top: float | None = None) -> alt.Y:
    """Return the vertical axis of a number that is never negative."""
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
        column: that names the part.
        shown: the parts that occur, in order.
        colors: part -> colour, of these and maybe others.
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
