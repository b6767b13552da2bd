"""What samples are made of: a histogram of each column, its tail marked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import altair as alt
import numpy as np

from mimokit.charts import _palette
from mimokit.charts._axes import inline, titled
from mimokit.units import counted
from mimokit.workload.mix import TAIL, SampleMix

BINS = 24
TAILS = ("most samples", "largest 5 %")


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


def histogram(column: np.ndarray, most: float | None = None) -> Iterator[dict[str, Any]]:
    """Yield the bars of a column, up to its largest value or another one."""
    edges = edges_of(column, float(column.max()) if most is None else most)
    counts, _ = np.histogram(column, edges)
    begin = np.quantile(column, TAIL)
    for count, left, right in zip(counts, edges, edges[1:], strict=False):
        bar = {"from": float(left), "to": float(right), "share": float(count) / len(column)}
        yield {**bar, "tail": TAILS[int(left + right > 2 * begin)]}


def edges_of(column: np.ndarray, most: float) -> np.ndarray:
    """Return where bars begin and end: around whole numbers where there are few."""
    if most < BINS and not np.any(column % 1):
        return np.arange(most + 2) - 0.5
    return np.linspace(0, max(most, 1e-9), BINS + 1)
