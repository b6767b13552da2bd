"""The loss over a run."""

from __future__ import annotations

import altair as alt
import pandas as pd

from mimokit.analysis import per_iteration
from mimokit.charts import axes, palette
from mimokit.charts.table import columns, layered, need


def loss(steps: pd.DataFrame, evaluations: pd.DataFrame | None = None) -> alt.LayerChart:
    """Return the training loss per iteration, and the held-out loss where it was evaluated."""
    need(steps, "loss", "iteration", "loss")
    iterations = per_iteration(steps)
    line = (
        alt.Chart(columns(iterations, ["iteration", "loss"]))
        .mark_line(color=palette.LINE, strokeWidth=1.8)
        .encode(
            x=axes.iterations(),
            y=axes.amount("loss", "~g"),
            tooltip=["iteration:Q", alt.Tooltip("loss:Q", format=".4f")],
        )
    )
    layers = [line, *_held_out(evaluations)]
    subtitle = "training (line)" + (" and held-out strips (points)" if len(layers) > 1 else "")
    chart: alt.LayerChart = layered(*layers).properties(
        title=alt.TitleParams("Loss", subtitle=subtitle),
        description=f"Loss over {len(iterations)} iterations",
    )
    return chart


def _held_out(evaluations: pd.DataFrame | None) -> list[alt.Chart]:
    if evaluations is None or evaluations.empty or evaluations["loss"].isna().all():
        return []
    data = columns(evaluations, ["iteration", "task", "loss"])
    return [
        alt.Chart(data)
        .mark_point(color=palette.ACCENT, filled=True, size=44, opacity=1)
        .encode(
            x="iteration:Q",
            y="loss:Q",
            shape=alt.Shape("task:N", legend=_legend(evaluations)),
            tooltip=["task:N", "iteration:Q", alt.Tooltip("loss:Q", format=".4f")],
        )
    ]


def _legend(evaluations: pd.DataFrame) -> alt.Legend | None:
    return axes.legend_above("circle") if evaluations["task"].nunique() > 1 else None
