"""Medians of runs or layouts next to each other, with their intervals."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from mimokit.analysis import Comparison
from mimokit.charts import _axes, _palette
from mimokit.charts._axes import inline, layered, records

BASELINE, DIFFERENT, SAME = "baseline", "differs from it", "not significant"
COLORS = {
    BASELINE: _palette.MUTED,
    DIFFERENT: _palette.LINE,
    SAME: _palette.tint(_palette.LINE, 0.6),
}


def compared_layouts(comparison: Comparison) -> alt.LayerChart:
    """Return a bar per name, best first, with the interval of its median as a line.

    The text at the end of a bar is the difference from the baseline; a pale bar does not differ
    significantly from it.
    """
    rows = [_row(row, comparison.baseline) for row in records(comparison.table)]
    names = [row["name"] for row in rows]
    base = alt.Chart(inline(rows)).encode(
        y=alt.Y("name:N", title=None, sort=names, axis=alt.Axis(labelLimit=320)),
        tooltip=[
            alt.Tooltip("name:N"),
            alt.Tooltip("runs:Q"),
            alt.Tooltip("median:Q", format=",.4~g"),
            alt.Tooltip("low:Q", format=",.4~g"),
            alt.Tooltip("high:Q", format=",.4~g"),
            alt.Tooltip("against:N", title="against the baseline"),
        ],
    )
    bars = base.mark_bar(height=alt.RelativeBandSize(0.7)).encode(
        x=alt.X("median:Q", title=comparison.metric, axis=alt.Axis(format="~s", tickCount=6)),
        color=alt.Color(
            "verdict:N",
            scale=alt.Scale(domain=list(COLORS), range=list(COLORS.values())),
            legend=_axes.legend_above(),
        ),
    )
    intervals = base.mark_rule(color=_palette.INK, strokeWidth=2).encode(x="low:Q", x2="high:Q")
    texts = base.mark_text(align="left", dx=6, color=_palette.INK, fontSize=11).encode(
        x="end:Q", text="against:N"
    )
    chart: alt.LayerChart = layered(bars, intervals, texts).properties(
        height=alt.Step(24),
        title=alt.TitleParams(
            f"Median {comparison.metric}",
            subtitle=f"lines: {comparison.confidence:.0%} intervals; texts: against "
            f"{comparison.baseline}",
        ),
        description=f"Median {comparison.metric} of {len(rows)} layouts with intervals",
    )
    return chart


def _row(row: dict[str, Any], baseline: str) -> dict[str, Any]:
    is_baseline = row["name"] == baseline
    high = row["median"] if pd.isna(row["high"]) else max(row["high"], row["median"])
    return {
        **{name: row[name] for name in ("name", "runs", "median", "low", "high")},
        "end": high,
        "verdict": BASELINE if is_baseline else DIFFERENT if row["significant"] else SAME,
        "against": "" if is_baseline else f"{row['change']:+.1%}",
    }
