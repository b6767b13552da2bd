"""Which rank works longer than the others, iteration by iteration, as a heat map."""

from __future__ import annotations

import altair as alt
import pandas as pd

from mimokit.analysis import rank_work
from mimokit.charts import _axes, _palette
from mimokit.charts._axes import inline, need, records

MOST_COLUMNS, MOST_RANKS = 100, 64
FAR = 0.5
"""Relative differences from here on have the darkest colours."""


def stragglers(ranks: pd.DataFrame) -> alt.Chart:
    """Return how much longer each rank works than the median rank, over the iterations of one run.

    Work is forward, backward, optimizer and data loading: what a rank does alone. The time of the
    whole step is the same on all ranks, because they wait for each other. A long run has at most
    100 columns, each the mean of its iterations; of more than 64 ranks those are shown that differ
    most from the others.

    Args:
        ranks: `Runs.ranks` of one run, or any table with a row per rank and iteration.
    """
    need(ranks, "stragglers", "iteration", "rank", "forward_time")
    work = rank_work(ranks)
    relative = work.div(work.median(axis=1).where(lambda median: median > 0), axis=0) - 1.0
    shown = relative.median().abs().nlargest(MOST_RANKS).index
    width = _iterations_in_a_column(relative)
    table = relative[sorted(shown)].reset_index().melt("iteration", value_name="share").dropna()
    table = table.assign(first=table["iteration"] // width * width)
    table = table.groupby(["rank", "first"], as_index=False)[["share"]].mean()
    table["stop"] = table["first"] + width
    colors = alt.Scale(domain=[-FAR, 0.0, FAR], range=list(_palette.DIVERGING), clamp=True)
    legend = alt.Legend(
        type="gradient", orient="top", title=None, format="+.0%", gradientLength=160,
        gradientThickness=8, offset=6,
    )  # fmt: skip
    chart: alt.Chart = (
        alt.Chart(inline(records(table.round({"share": 4}))))
        .mark_rect(strokeWidth=0.7)
        .encode(
            x=_axes.iterations("first"),
            x2="stop:Q",
            y=_axes.ranks(),
            fill=alt.Fill("share:Q", scale=colors, legend=legend),
            stroke=alt.Stroke("share:Q", scale=colors, legend=legend),
            tooltip=["rank:O", "first:Q", alt.Tooltip("share:Q", format="+.1%")],
        )
        .properties(
            height=alt.Step(16),
            title=alt.TitleParams(
                "Stragglers",
                subtitle="work of a rank against the median of all ranks in the same step",
            ),
            description=f"Heat map of the work of {len(shown)} ranks by iterations",
        )
    )
    return chart


def _iterations_in_a_column(table: pd.DataFrame) -> int:
    span = int(table.index.max() - table.index.min()) + 1 if len(table) else 1
    return -(-span // MOST_COLUMNS)
