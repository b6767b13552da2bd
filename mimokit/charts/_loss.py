"""The loss over a run."""

from __future__ import annotations

import altair as alt
import pandas as pd

from mimokit.analysis import per_iteration
from mimokit.charts import _axes, _palette
from mimokit.charts._table import columns, layered, need

TRAINING = "training"
HELD_OUT = "held-out samples"


def loss(steps: pd.DataFrame, evaluations: pd.DataFrame | None = None) -> alt.LayerChart:
    """Return the training loss per iteration, and the held-out loss where it was evaluated."""
    need(steps, "loss", "iteration", "loss")
    iterations = per_iteration(steps)
    line = (
        alt.Chart(columns(iterations, ["iteration", "loss"]))
        .transform_calculate(on=f"'{TRAINING}'")
        .mark_line(strokeWidth=1.8)
        .encode(
            x=_axes.iterations(),
            y=_axes.amount("loss", "~g"),
            color=_color(),
            tooltip=["iteration:Q", alt.Tooltip("loss:Q", format=".4f")],
        )
    )
    chart: alt.LayerChart = layered(line, *_held_out(evaluations)).properties(
        title=alt.TitleParams("Loss", subtitle="mean over the unmasked tokens"),
        description=f"Loss over {len(iterations)} iterations",
    )
    return chart


def _held_out(evaluations: pd.DataFrame | None) -> list[alt.Chart]:
    if evaluations is None or evaluations.empty or evaluations["loss"].isna().all():
        return []
    return [
        alt.Chart(columns(evaluations, ["iteration", "task", "loss"]))
        .transform_calculate(on=f"'{HELD_OUT}'")
        .mark_point(filled=True, size=44, opacity=1)
        .encode(
            x="iteration:Q",
            y="loss:Q",
            color=_color(),
            shape=alt.Shape("task:N", legend=_task_legend(evaluations)),
            tooltip=["task:N", "iteration:Q", alt.Tooltip("loss:Q", format=".4f")],
        )
    ]


def _color() -> alt.Color:
    return alt.Color(
        "on:N",
        scale=alt.Scale(domain=[TRAINING, HELD_OUT], range=[_palette.LINE, _palette.ACCENT]),
        legend=_axes.legend_above("stroke"),
    )


def _task_legend(evaluations: pd.DataFrame) -> alt.Legend | None:
    return _axes.legend_above("circle") if evaluations["task"].nunique() > 1 else None
