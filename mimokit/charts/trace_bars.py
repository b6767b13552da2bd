"""Measured against planned: what every rank did when, and when the plan has it work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import altair as alt
import pandas as pd

from mimokit.charts import axes, palette
from mimokit.charts.table import inline, layered, need, records

_MILLISECONDS = 1e3
MEASURED, PLANNED = "measured", "planned"
WAITING = "messages, reduction and waiting"
_WORK = ("forward", "backward")
_OTHERS = {
    "load": "data",
    "slice": "data",
    "loss": "other",
    "optimizer": "optimizer",
}


def trace_timeline(
    measured: pd.DataFrame, planned: pd.DataFrame | None = None, title: str = "One iteration"
) -> alt.LayerChart:
    """Return the steps of every rank on one axis; below the measured ones those that are planned.

    The light shade of a module is its forward pass, the full colour its backward pass.

    Args:
        measured: one iteration, from `mimokit.analysis.traced_iteration`.
        planned: from `mimokit.analysis.planned_steps`; None where nothing is pipelined.
        title: above the chart.
    """
    need(measured, "trace_timeline", "rank", "name", "module", "start", "stop")
    kinds = {MEASURED: measured} if planned is None else {MEASURED: measured, PLANNED: planned}
    rows = [row for kind, table in kinds.items() for row in _rows(table, kind)]
    colors = _colors(_modules(measured))
    shown = [key for key in colors if any(row["key"] == key for row in rows)]
    base = alt.Chart(inline(rows)).encode(
        x=alt.X(
            "start:Q",
            title="milliseconds",
            axis=alt.Axis(grid=False, tickCount=8),
            scale=alt.Scale(nice=False),
        ),
        x2="stop:Q",
        y=alt.Y(
            "rank:O",
            title=None,
            axis=alt.Axis(labelExpr="'rank ' + datum.value", minExtent=axes.LEFT),
        ),
        yOffset=alt.YOffset("kind:N", sort=list(kinds)),
        tooltip=[
            "kind:N",
            alt.Tooltip("rank:O"),
            alt.Tooltip("step:N"),
            alt.Tooltip("microbatch:Q", title="micro-batch"),
            alt.Tooltip("start:Q", format=".4~g"),
            alt.Tooltip("stop:Q", format=".4~g"),
        ],
    )
    color = axes.parts("key", shown, colors, columns=5)
    opacity = alt.Opacity(
        "kind:N", legend=None, scale=alt.Scale(domain=[MEASURED, PLANNED], range=[1.0, 0.55])
    )
    bars = base.mark_bar(stroke=palette.PAPER, strokeWidth=0.4)
    chart: alt.LayerChart = layered(bars.encode(color=color, opacity=opacity)).properties(
        height=alt.Step(14 if planned is None else 11),
        title=alt.TitleParams(title, subtitle=_subtitle(measured, planned)),
        description=f"Timeline of {measured['rank'].nunique()} ranks, {', '.join(kinds)}",
    )
    return chart


def _rows(table: pd.DataFrame, kind: str) -> Iterator[dict[str, Any]]:
    for row in records(table):
        microbatch = row["microbatch"]
        yield {
            "kind": kind,
            "rank": int(row["rank"]),
            "key": _key(row["name"], row["module"]),
            "step": row["name"] if pd.isna(row["module"]) else f"{row['name']} {row['module']}",
            "microbatch": None if pd.isna(microbatch) else int(microbatch),
            "start": row["start"] * _MILLISECONDS,
            "stop": row["stop"] * _MILLISECONDS,
        }


def _key(name: str, module: Any) -> str:
    if name in _WORK:
        return f"{module} {name}"
    return _OTHERS.get(name, WAITING)


def _modules(measured: pd.DataFrame) -> list[str]:
    """Return the modules as the plan orders them: by their first rank, then as samples pass."""
    forward = measured[measured["name"] == "forward"]
    found = forward.groupby("module")[["rank", "start"]].min().sort_values(["rank", "start"])
    return [str(name) for name in found.index]


def _colors(modules: list[str]) -> dict[str, str]:
    colors = {}
    for module, hue in palette.module_colors(modules).items():
        colors[f"{module} forward"] = palette.forward_color(hue)
        colors[f"{module} backward"] = hue
    waiting = palette.tint(palette.PHASE_COLORS["communication"], 0.6)
    return {**colors, WAITING: waiting, **palette.PHASE_COLORS}


def _subtitle(measured: pd.DataFrame, planned: pd.DataFrame | None) -> str:
    whole = (measured["stop"].max() - measured["start"].min()) * _MILLISECONDS
    if planned is None:
        return f"{whole:,.1f} ms, measured"
    work = measured[measured["name"].isin(_WORK)]
    span = (work["stop"].max() - work["start"].min()) * _MILLISECONDS
    plan = (planned["stop"].max() - planned["start"].min()) * _MILLISECONDS
    return (
        f"of two bars the upper is measured, the lower planned with the measured medians: the "
        f"pipeline takes {span:,.1f} ms, planned {plan:,.1f} ms"
    )
