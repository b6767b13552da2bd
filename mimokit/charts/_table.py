"""Tables as the inline data of a chart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd


def inline(rows: Iterable[Mapping[str, Any]]) -> alt.InlineData:
    """Return rows as chart data: plain Python values, and None where a number is missing."""
    return alt.InlineData(
        values=[{name: _plain(value) for name, value in row.items()} for row in rows]
    )


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as dicts."""
    return [{str(name): row[name] for name in row} for row in table.to_dict("records")]


def columns(table: pd.DataFrame, names: Sequence[str]) -> alt.InlineData:
    """Return some columns of a table as chart data, so that the chart carries nothing else."""
    return inline(records(table.loc[:, list(names)]))


def need(table: pd.DataFrame, chart: str, *names: str) -> None:
    """Refuse a table that lacks a column.

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
