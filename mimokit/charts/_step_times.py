"""Step time of every rank over the run, as a heat map."""

from __future__ import annotations

import altair as alt
import pandas as pd

from mimokit.charts import _axes, _palette
from mimokit.charts._axes import inline, need, records

MOST_COLUMNS = 100


def step_times(steps: pd.DataFrame) -> alt.Chart:
    """Return the time of a step, rank by rank over the run, in milliseconds.

    A long run has at most 100 columns, each the mean of its iterations. The colours range from half
    to one and a half times the median, so that noise stays pale and one slow start does not make
    everything else pale.
    """
    need(steps, "step_times", "iteration", "total_time")
    table = steps if "rank" in steps.columns else steps.assign(rank=0)
    width = _iterations_in_a_column(table)
    first = table["iteration"] // width * width
    cells = (
        table.assign(first=first, stop=first + width, ms=table["total_time"] * 1000)
        .groupby(["rank", "first", "stop"], as_index=False)[["ms"]]
        .mean()
        .round(2)
    )
    median = float(cells["ms"].median()) if len(cells) else 1.0
    colors = alt.Scale(domain=_around(median), range=list(_palette.HEAT), clamp=True)
    chart: alt.Chart = (
        alt.Chart(inline(records(cells)))
        .mark_rect(strokeWidth=0.7)
        .encode(
            x=_axes.iterations("first"),
            x2="stop:Q",
            y=_axes.ranks(),
            fill=alt.Fill("ms:Q", scale=colors, legend=_legend()),
            stroke=alt.Stroke("ms:Q", scale=colors, legend=_legend()),
            tooltip=["rank:O", "first:Q", alt.Tooltip("ms:Q", format=".1f")],
        )
        .properties(
            height=alt.Step(16),
            title=alt.TitleParams("Step time", subtitle="milliseconds, rank by rank"),
            description="Heat map of the step time, ranks by iterations",
        )
    )
    return chart


def _around(median: float) -> list[float]:
    """Return the values of the colours of the palette, in its order."""
    steps = len(_palette.HEAT) - 1
    return [median * (0.5 + step / steps) for step in range(steps + 1)]


def _legend() -> alt.Legend:
    return alt.Legend(
        type="gradient",
        orient="top",
        title=None,
        format=".0f",
        gradientLength=160,
        gradientThickness=8,
        offset=6,
    )


def _iterations_in_a_column(table: pd.DataFrame) -> int:
    if table.empty:
        return 1
    span = int(table["iteration"].max() - table["iteration"].min()) + 1
    return -(-span // MOST_COLUMNS)
