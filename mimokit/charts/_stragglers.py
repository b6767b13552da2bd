"""Which rank works longer than the others, iteration by iteration, as a heat map."""

from __future__ import annotations

import altair as alt
import pandas as pd

from mimokit.analysis import rank_work
from mimokit.charts import _palette
from mimokit.charts._axes import need
from mimokit.charts._heat_map import cells, heat_map

MOST_RANKS = 64
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
    table = relative[sorted(shown)].reset_index().melt("iteration", value_name="share").dropna()
    colors = alt.Scale(domain=[-FAR, 0.0, FAR], range=list(_palette.DIVERGING), clamp=True)
    shares = cells(table, "share", 4)
    chart: alt.Chart = heat_map(shares, "share", colors, tooltip="+.1%", legend="+.0%").properties(
        title=alt.TitleParams(
            "Stragglers",
            subtitle="work of a rank against the median of all ranks in the same step",
        ),
        description=f"Heat map of the work of {len(shown)} ranks by iterations",
    )
    return chart
