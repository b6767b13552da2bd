"""What samples are made of: a histogram of each column, its tail marked."""

from __future__ import annotations

from typing import Any

import altair as alt

from mimokit.charts import _palette
from mimokit.charts._axes import inline, titled
from mimokit.units import counted
from mimokit.workload.histogram import TAILS, histogram
from mimokit.workload.mix import SampleMix


def sample_histograms(mix: SampleMix) -> alt.ConcatChart:
    """Return a histogram of each column of a mix; the largest 5 % of the samples are marked."""
    chart: alt.ConcatChart = alt.concat(
        *(_bars(name, list(histogram(column))) for name, column in mix.columns.items()), columns=3
    )
    return titled(
        chart,
        "Samples",
        f"{mix.source}: {counted(mix.rows, 'sample')}",
        "Histogram of every column of the samples; the bars of the largest 5 % are marked",
    )


def _bars(name: str, rows: list[dict[str, Any]]) -> alt.Chart:
    tail = alt.Scale(domain=TAILS, range=[_palette.LINE, _palette.ACCENT])
    chart: alt.Chart = (
        alt.Chart(inline(rows))
        .mark_bar()
        .encode(
            alt.X("from:Q", title=name, bin="binned"),
            alt.X2("to:Q"),
            alt.Y("share:Q", title="share of samples", axis=alt.Axis(format="%")),
            alt.Color("tail:N", title=None, scale=tail),
            tooltip=["from:Q", "to:Q", alt.Tooltip("share:Q", format=".1%")],
        )
        .properties(width=180, height=110)
    )
    return chart
