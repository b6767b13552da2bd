"""The layouts of a search by step time, memory and GPUs."""

from __future__ import annotations

from typing import Any

import altair as alt

from mimokit.charts import _axes, _palette
from mimokit.charts._axes import inline, layered, titled
from mimokit.layout_search import SearchResult
from mimokit.prediction import Prediction
from mimokit.units import GIB, counted

PICK = "picked"
"""Name of the selection with the `index` of the clicked point."""


def pareto(result: SearchResult) -> alt.LayerChart:
    """Return the Pareto front of a search with a ring around the best layout.

    A point is a layout that no other one beats in step time, memory and GPUs at once; its size
    shows the GPUs. Each point has its layout, and its place in `result.pareto` as `index`.
    """
    rows = [_row(prediction, index) for index, prediction in enumerate(result.pareto)]
    limit = result.task.memory_limit / GIB
    modes = _palette.mode_colors(dict.fromkeys(row["mode"] for row in rows))
    x = alt.X(
        "seconds:Q",
        title="seconds per step",
        scale=alt.Scale(type="log", nice=False, padding=16),
        axis=alt.Axis(format="~g", tickCount=6, grid=True),
    )
    y = alt.Y(
        "memory:Q",
        title="GiB on the fullest rank",
        scale=alt.Scale(domain=[0, 1.05 * limit], nice=False),
        axis=alt.Axis(minExtent=_axes.LEFT),
    )
    points = alt.Chart(inline(rows)).mark_circle(
        opacity=0.8, stroke=_palette.PAPER, strokeWidth=0.6
    )
    points = points.add_params(alt.selection_point(name=PICK, fields=["index"], on="click"))
    color = _axes.colored("mode", modes, "circle")
    best = alt.Chart(inline([_row(result.best, -1)]))
    ring = best.mark_point(size=420, stroke=_palette.ACCENT, strokeWidth=2)
    planned = alt.Chart(inline([{"memory": limit}]))
    rule = planned.mark_rule(strokeDash=[4, 4], color=_palette.MUTED)
    return titled(
        layered(
            rule.encode(y=y),
            points.encode(x=x, y=y, color=color, size=_gpus(), tooltip=_tooltip()),
            ring.encode(x=x, y=y, tooltip=_tooltip()),
        ),
        "Step time, memory and GPUs",
        f"{result.task.model.name}: {counted(len(rows), 'layout')} that no other one beats; "
        "the dashed line is what may be planned, the ring the best",
        f"Pareto front of {counted(len(rows), 'layout')} of {result.task.model.name}",
        width=560,
        height=300,
    )


def _row(prediction: Prediction, index: int) -> dict[str, Any]:
    return {
        "index": index,
        "seconds": prediction.seconds,
        "memory": prediction.peak_memory / GIB,
        "gpus": prediction.layout.gpus,
        "mode": prediction.layout.mode,
        "layout": str(prediction.layout).split(": ", 1)[1],
        "utilisation": prediction.utilisation,
    }


def _gpus() -> alt.Size:
    return alt.Size(
        "gpus:Q",
        scale=alt.Scale(type="log", range=[18, 220]),
        legend=alt.Legend(title="GPUs", orient="right", symbolFillColor=_palette.MUTED),
    )


def _tooltip() -> list[str | alt.Tooltip]:
    return [
        "layout:N",
        "mode:N",
        alt.Tooltip("gpus:Q", title="GPUs"),
        alt.Tooltip("seconds:Q", format=".3s", title="seconds per step"),
        alt.Tooltip("memory:Q", format=".1f", title="GiB"),
        alt.Tooltip("utilisation:Q", format=".1%", title="of peak"),
    ]
