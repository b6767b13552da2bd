"""Memory of the fullest rank of each module, against that of a GPU."""

from __future__ import annotations

from typing import Any

import altair as alt

from mimokit.charts import _axes, _palette
from mimokit.charts._axes import inline, layered
from mimokit.prediction import Prediction
from mimokit.units import GIB

LIMIT = "what the GPU has"


def memory_bars(prediction: Prediction) -> alt.LayerChart:
    """Return predicted memory as stacked bars in GiB, and the GPU's limit as a line.

    There is one bar per module. Modules that share their ranks have one more bar, their sum, which
    is the one to compare with the line. The tool tip of a part shows its formula.
    """
    rows = _rows(prediction)
    order = list(dict.fromkeys(row["bar"] for row in rows))
    parts = [part for part in _palette.MEMORY_COLORS if any(r["part"] == part for r in rows)]
    bars = (
        alt.Chart(inline(rows))
        .mark_bar()
        .encode(
            x=alt.X("sum(gib):Q", title="GiB on the fullest rank", stack="zero"),
            y=alt.Y("bar:N", title=None, sort=order),
            color=_axes.parts("part", parts, _palette.MEMORY_COLORS, columns=6),
            order="order:Q",
            tooltip=[
                "module:N",
                "part:N",
                alt.Tooltip("gib:Q", title="GiB", format=".2f"),
                "formula:N",
                "numbers:N",
            ],
        )
    )
    chart: alt.LayerChart = layered(bars, *_limit(prediction)).properties(
        height=alt.Step(26),
        title=alt.TitleParams("Memory", subtitle=_subtitle(prediction)),
        description="Predicted memory per module and part against the GPU's limit",
    )
    return chart


def _rows(prediction: Prediction) -> list[dict[str, Any]]:
    order = list(_palette.MEMORY_COLORS)
    rows = [
        {**row, "bar": row["module"], "order": order.index(row["part"])}
        for row in prediction.memory_rows()
    ]
    if prediction.layout.mode == "heterogeneous" or len(prediction.lines) < 2:
        return rows
    return rows + [{**row, "bar": "together"} for row in rows]


def _limit(prediction: Prediction) -> tuple[alt.Chart, alt.Chart]:
    limit = alt.Chart(inline([{"gib": prediction.capacity / GIB, "text": LIMIT}]))
    line = limit.mark_rule(color=_palette.ACCENT, strokeWidth=2).encode(x="gib:Q")
    text = limit.mark_text(
        align="right", dx=-5, y=0, dy=-7, color=_palette.ACCENT, fontSize=11
    ).encode(x="gib:Q", text="text:N")
    return line, text


def _subtitle(prediction: Prediction) -> str:
    peak, limit = prediction.peak_memory / GIB, prediction.capacity / GIB
    verdict = "fits" if prediction.fits else "does not fit"
    return f"{prediction.layout}: {peak:.1f} of {limit:.1f} GiB, {verdict}"
