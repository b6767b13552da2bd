"""The loss of several runs over the tokens they have seen, laid over each other."""

from __future__ import annotations

import altair as alt
import pandas as pd

from mimokit.charts import _axes
from mimokit.charts._axes import inline, need, records

MOST_POINTS = 200
"""Points of a line; of longer runs each is the mean of successive iterations."""


def losses(table: pd.DataFrame) -> alt.Chart:
    """Return the loss over tokens, a line per run.

    The loss of a layout is that of one process, so lines of the same model, data and seed lie on
    each other; a line that departs shows another batch size, another seed or a fault.

    Args:
        table: from `mimokit.analysis.loss_over_tokens`.
    """
    need(table, "losses", "run", "tokens", "loss")
    names = list(dict.fromkeys(map(str, table["run"])))
    color, dash = _axes.named_lines("run", names)
    rows = [
        row for _, of_run in table.groupby("run", observed=True) for row in records(_thin(of_run))
    ]
    chart: alt.Chart = (
        alt.Chart(inline(rows))
        .mark_line(strokeWidth=1.8, opacity=0.85)
        .encode(
            x=alt.X(
                "tokens:Q",
                title=_title(table),
                axis=alt.Axis(grid=False, format="~s", tickCount=8),
                scale=alt.Scale(zero=True, nice=False),
            ),
            y=alt.Y(
                "loss:Q",
                title=None,
                axis=alt.Axis(format="~g", tickCount=5, minExtent=_axes.LEFT),
                scale=alt.Scale(zero=False),
            ),
            color=color,
            strokeDash=dash,
            tooltip=["run:N", "tokens:Q", alt.Tooltip("loss:Q", format=".4f")],
        )
        .properties(
            title=alt.TitleParams("Loss", subtitle="mean over the unmasked tokens of a step"),
            description=f"Loss over tokens of {len(names)} runs",
        )
    )
    return chart


def _title(table: pd.DataFrame) -> str:
    return str(table.attrs.get("over", "tokens"))


def _thin(table: pd.DataFrame) -> pd.DataFrame:
    every = -(-len(table) // MOST_POINTS)
    curve = table[["tokens", "loss"]].reset_index(drop=True)
    means = curve.groupby(curve.index // every).mean()
    return means.assign(run=str(table["run"].iloc[0]))
