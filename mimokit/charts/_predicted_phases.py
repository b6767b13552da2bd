"""The predicted phases of a step next to the measured ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from mimokit.analysis import module_names, phase_times
from mimokit.charts import _axes
from mimokit.charts._axes import inline, need, records
from mimokit.charts._phases import phase_colors
from mimokit.prediction.local_cpu import SharedPrediction

SIDES = ("predicted", "measured")


def predicted_phases(
    runs: Mapping[str, tuple[SharedPrediction, pd.DataFrame]], warmup_iterations: int = 0
) -> alt.Chart:
    """Return two stacked bars per layout, predicted above measured, in milliseconds.

    Parts are phases, mean over ranks. On both sides, a phase includes its waiting for other ranks.

    Args:
        runs: name of a layout -> (its prediction, the step table of its run).

    Raises:
        ValueError: there is no run, or a table lacks a column.
    """
    if not runs:
        raise ValueError("The chart predicted_phases needs at least one run.")
    modules: list[str] = []
    for _, steps in runs.values():
        need(steps, "predicted_phases", "iteration", "total_time")
        modules += [name for name in module_names(steps) if name not in modules]
    colors = phase_colors(modules)
    rows = [
        {"layout": name, "side": side, "key": key, "order": list(colors).index(key), "ms": ms}
        for name, (prediction, steps) in runs.items()
        for side, parts in zip(
            SIDES, (_predicted(prediction), _measured(steps, warmup_iterations)), strict=True
        )
        for key, ms in parts.items()
    ]
    return _bars(rows, colors)


def _predicted(prediction: SharedPrediction) -> dict[str, float]:
    return {f"{m} {phase}".strip(): 1000 * s for (m, phase), s in prediction.phases().items()}


def _measured(steps: pd.DataFrame, warmup_iterations: int) -> dict[str, float]:
    times = phase_times(steps, warmup_iterations)
    ranks = times["rank"].nunique()
    milliseconds: dict[str, float] = {}
    for row in records(times):
        key = f"{row['module']} {row['phase']}".strip()
        milliseconds[key] = milliseconds.get(key, 0.0) + 1000 * float(row["seconds"]) / ranks
    return milliseconds


def _bars(rows: list[dict[str, Any]], colors: Mapping[str, str]) -> alt.Chart:
    present = {row["key"] for row in rows}
    domain = [key for key in colors if key in present]
    chart: alt.Chart = (
        alt.Chart(inline(rows))
        .mark_bar()
        .encode(
            x=alt.X("sum(ms):Q", title="milliseconds in a step", stack="zero"),
            y=alt.Y("side:N", title=None, sort=list(SIDES)),
            row=alt.Row(
                "layout:N",
                title=None,
                sort=list(dict.fromkeys(row["layout"] for row in rows)),
                header=alt.Header(labelAngle=0, labelAlign="left", labelLimit=320),
            ),
            color=_axes.parts("key", domain, colors, columns=5),
            order="order:Q",
            tooltip=["layout:N", "side:N", "key:N", alt.Tooltip("ms:Q", format=".1f")],
        )
        .properties(
            height=alt.Step(18),
            title=alt.TitleParams(
                "Predicted and measured step",
                subtitle="mean over ranks; light: forward, full: backward; waiting included",
            ),
            description="Predicted and measured time of a step by phase, per layout",
        )
    )
    return chart
