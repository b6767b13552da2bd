"""What nodes send after each step, under several strategies."""

from __future__ import annotations

import altair as alt
import pandas as pd

from mimokit.analysis.table_file import records
from mimokit.charts import _palette
from mimokit.charts._axes import inline, need
from mimokit.units import bytes_text

MOST_BARS = 240
"""Bars of a fit; of longer fits each is the largest of successive steps."""
ROW = 34
"""Pixels of the height of a fit."""
SUBTITLE = "that a node sends for the strategy; bars by their square roots"


def step_bytes(table: pd.DataFrame) -> alt.FacetChart:
    """Return the bytes that a node sends after each step, a row of bars per fit.

    The scale is that of square roots, so that small exchanges can be seen next to large ones.

    Args:
        table: from `mimokit.analysis.bytes_of_fits`.
    """
    need(table, "step_bytes", "fit", "step", "sent_bytes")
    names = list(dict.fromkeys(map(str, table["fit"])))
    most = int(table["step"].max()) if len(table) else 1
    every = -(-most // MOST_BARS)
    labels = {name: _label(name, table[table["fit"] == name]["sent_bytes"]) for name in names}
    rows = [
        {**row, "fit": labels[str(row["fit"])], "stop": row["first"] + every}
        for row in records(_largest(table[table["sent_bytes"] > 0], every))
    ]
    bars = alt.Chart(inline(rows)).mark_rect(color=_palette.LINE)
    x = alt.X(
        "first:Q",
        title="optimizer steps",
        axis=alt.Axis(grid=False, format="d", tickCount=8),
        scale=alt.Scale(domain=[0, max(1, most)], nice=False),
    )
    y = alt.Y(
        "sent_bytes:Q",
        title=None,
        axis=alt.Axis(labels=False, values=[0]),
        scale=alt.Scale(type="sqrt", zero=True),
    )
    chart: alt.FacetChart = (
        bars.encode(x=x, x2="stop:Q", y=y, y2=alt.datum(0), tooltip=["fit:N", "sent_bytes:Q"])
        .properties(height=ROW)
        .facet(
            row=alt.Row(
                "fit:N",
                title=None,
                sort=list(labels.values()),
                header=alt.Header(labelAngle=0, labelAlign="left", labelPadding=10, labelLimit=320),
            ),
            spacing=8,
        )
        .properties(
            title=alt.TitleParams("Bytes per step", subtitle=SUBTITLE),
            description=f"Bytes that a node sends after each step of {len(names)} fits",
        )
    )
    return chart


def _largest(table: pd.DataFrame, every: int) -> pd.DataFrame:
    """Return the largest of every few successive steps: fit, first, sent_bytes."""
    first = (table["step"] - 1) // every * every
    groups = table.assign(first=first).groupby(["fit", "first"], as_index=False, sort=False)
    bytes_of_step: pd.DataFrame = groups[["sent_bytes"]].max()
    return bytes_of_step


def _label(name: str, sent: pd.Series) -> str:
    mean, most = (bytes_text(round(value)) for value in (sent.mean(), sent.max()))
    return f"{name}: mean {mean}, largest {most}"
