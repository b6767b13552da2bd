"""Measured memory of every rank, against what there is."""

from __future__ import annotations

import altair as alt
import pandas as pd

from mimokit.charts import _axes, _palette
from mimokit.charts._axes import inline, layered, need, records
from mimokit.units import GIB, gib_text

COLUMNS = ("memory_peak", "memory_allocated")
"""The first one that was measured is shown."""
LIMIT = "limit of a rank"
MOST_RANKS = 64


def rank_memory(ranks: pd.DataFrame, limit: float | None = None) -> alt.LayerChart:
    """Return the largest memory of every rank over a run as bars in GiB, and the limit as a line.

    Of more than 64 ranks the fullest 64 are shown.

    Args:
        ranks: `Runs.ranks` of one run, or any table with a row per rank and iteration.
        limit: bytes that a rank may use, such as a GPU's memory; None draws no line.
    """
    column = next((name for name in COLUMNS if name in ranks and ranks[name].notna().any()), "")
    need(ranks, "rank_memory", "rank", column or COLUMNS[0])
    peaks = ranks.groupby("rank")[column].max().nlargest(MOST_RANKS)
    table = pd.DataFrame({"rank": peaks.index, "gib": peaks.to_numpy() / GIB})
    full = float(peaks.max())
    bars = (
        alt.Chart(inline(records(table)))
        .mark_bar(color=_palette.LINE, height=alt.RelativeBandSize(0.7))
        .encode(
            x=alt.X("gib:Q", title="GiB", axis=alt.Axis(tickCount=6)),
            y=_axes.ranks(),
            tooltip=["rank:O", alt.Tooltip("gib:Q", title="GiB", format=".3~g")],
        )
    )
    against = f" of {gib_text(limit, 2)}" if limit else ""
    chart: alt.LayerChart = layered(bars, *_limit(limit)).properties(
        height=alt.Step(18),
        title=alt.TitleParams(
            "Memory by rank",
            subtitle=f"largest {column} of the run; the fullest rank has "
            f"{gib_text(full, 2)}{against}",
        ),
        description=f"Largest {column} of {len(table)} ranks",
    )
    return chart


def _limit(limit: float | None) -> list[alt.Chart]:
    if not limit:
        return []
    mark = alt.Chart(inline([{"gib": limit / GIB, "text": LIMIT}]))
    line = mark.mark_rule(color=_palette.ACCENT, strokeWidth=2).encode(x="gib:Q")
    text = mark.mark_text(
        align="right", dx=-5, y=0, dy=-7, color=_palette.ACCENT, fontSize=11
    ).encode(x="gib:Q", text="text:N")
    return [line, text]
