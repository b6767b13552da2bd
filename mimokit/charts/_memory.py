"""Memory of ranks against that of a GPU: predicted by module, and measured by rank."""

from typing import Any

import altair as alt
import pandas as pd

from mimokit.charts import _axes, _palette
from mimokit.charts._axes import MOST_RANKS, inline, layered, need, records, titled
from mimokit.prediction import Prediction
from mimokit.units import GIB, counted, gib_text

COLUMNS = ("memory_peak", "memory_allocated")
"""The first one that was measured is shown."""


def memory_bars(prediction: Prediction) -> alt.LayerChart:
    """Return predicted memory as stacked bars in GiB, and the GPU's limit as a line.

    There is one bar per module. Modules that share their ranks have one more bar, their sum, which
    is the one to compare with the line. The tool tip of a part shows its formula.
    """
    rows = _rows(prediction)
    order = list(dict.fromkeys(row["bar"] for row in rows))
    bars = _axes.stacked(
        rows,
        alt.X("sum(gib):Q", title="GiB on the fullest rank"),
        alt.Y("bar:N", title=None, sort=order),
        _axes.parts("part", rows, _palette.MEMORY_COLORS, columns=6),
        [
            "module:N",
            "part:N",
            alt.Tooltip("gib:Q", title="GiB", format=".2f"),
            "formula:N",
            "numbers:N",
        ],
    )
    peak, limit = prediction.peak_memory / GIB, prediction.capacity / GIB
    verdict = "fits" if prediction.fits else "does not fit"
    return titled(
        layered(bars, *_limit(limit, "what the GPU has")),
        "Memory",
        f"{prediction.layout}: {peak:.1f} of {limit:.1f} GiB, {verdict}",
        "Predicted memory per module and part against the GPU's limit",
        height=alt.Step(26),
    )


def _rows(prediction: Prediction) -> list[dict[str, Any]]:
    order = list(_palette.MEMORY_COLORS)
    rows = [
        {**row, "bar": row["module"], "order": order.index(row["part"])}
        for row in prediction.memory_rows()
    ]
    if prediction.layout.mode == "heterogeneous" or len(prediction.lines) < 2:
        return rows
    return rows + [{**row, "bar": "together"} for row in rows]


def rank_memory(ranks: pd.DataFrame, limit: float | None = None) -> alt.LayerChart:
    """Return the largest memory of every rank over a run as bars in GiB, and the limit as a line.

    Of more than 64 ranks the fullest 64 are shown.

    Args:
        limit: bytes that a rank may use, such as a GPU's memory; None draws no line.
    """
    column = next((name for name in COLUMNS if name in ranks and ranks[name].notna().any()), "")
    need(ranks, "rank_memory", "rank", column or COLUMNS[0])
    peaks = ranks.groupby("rank")[column].max().nlargest(MOST_RANKS)
    table = pd.DataFrame({"rank": peaks.index, "gib": peaks.to_numpy() / GIB})
    bars = (
        alt.Chart(inline(records(table)))
        .mark_bar(color=_palette.LINE, height=alt.RelativeBandSize(0.7))
        .encode(
            x=alt.X("gib:Q", title="GiB", axis=alt.Axis(tickCount=6)),
            y=_axes.ranks(),
            tooltip=["rank:O", alt.Tooltip("gib:Q", title="GiB", format=".3~g")],
        )
    )
    full = gib_text(float(peaks.max()), 2)
    against = f" of {gib_text(limit, 2)}" if limit else ""
    return titled(
        layered(bars, *(_limit(limit / GIB, "limit of a rank") if limit else ())),
        "Memory by rank",
        f"largest {column} of the run; the fullest rank has {full}{against}",
        f"Largest {column} of {counted(len(table), 'rank')}",
        height=alt.Step(18),
    )


def _limit(gib: float, text: str) -> tuple[alt.Chart, alt.Chart]:
    limit = alt.Chart(inline([{"gib": gib, "text": text}]))
    line = limit.mark_rule(color=_palette.ACCENT, strokeWidth=2).encode(x="gib:Q")
    label = limit.mark_text(align="right", dx=-5, y=0, dy=-7, color=_palette.TEXT, fontSize=11)
    return line, label.encode(x="gib:Q", text="text:N")
