"""Time of a step by phase, rank by rank."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from mimokit.analysis import module_names, phase_times
from mimokit.charts import _axes, _palette
from mimokit.charts._axes import inline, need, records

MOST_RANKS = 64


def phases(steps: pd.DataFrame, warmup_iterations: int = 0) -> alt.Chart:
    """Return the mean time of a step as stacked bars, one per rank, in milliseconds.

    The light shade of a module is its forward pass, the full colour its backward pass; grey is time
    outside all phases. Of more than 64 ranks the 64 slowest are shown.
    """
    need(steps, "phases", "iteration", "total_time")
    times = phase_times(steps, warmup_iterations)
    shown = _slowest(times)
    colors = phase_colors(module_names(steps))
    present = {_key(row) for row in shown}
    domain = [key for key in colors if key in present]
    rows = [
        {**row, "key": _key(row), "order": domain.index(_key(row)), "ms": row["seconds"] * 1000}
        for row in shown
    ]
    chart: alt.Chart = (
        alt.Chart(inline(rows))
        .mark_bar()
        .encode(
            x=alt.X(
                "sum(ms):Q",
                title="milliseconds in a step",
                stack="zero",
                axis=alt.Axis(tickCount=8),
            ),
            y=_axes.ranks(),
            color=_axes.parts("key", domain, colors, columns=5),
            order="order:Q",
            tooltip=["rank:O", "key:N", alt.Tooltip("sum(ms):Q", title="ms", format=".1f")],
        )
        .properties(
            height=alt.Step(20),
            title=alt.TitleParams(
                "Time per phase and module",
                subtitle="mean of a step, rank by rank; light: forward, full: backward",
            ),
            description="Mean time of a step per rank, phase and module",
        )
    )
    return chart


def phase_colors(modules: list[str]) -> dict[str, str]:
    """Return the colour of every phase in stacking order; keys as in the legend."""
    hues = _palette.module_colors(modules)
    forward = {f"{name} forward": _palette.forward_color(hue) for name, hue in hues.items()}
    backward = {f"{name} backward": hue for name, hue in hues.items()}
    return {**forward, **backward, **_palette.PHASE_COLORS}


def _key(row: dict[str, Any]) -> str:
    return f"{row['module']} {row['phase']}".strip()


def _slowest(times: pd.DataFrame) -> list[dict[str, Any]]:
    total = times.groupby("rank")["seconds"].sum().nlargest(MOST_RANKS)
    return records(times[times["rank"].isin(total.index)])
