"""Accuracy on held-out strips, next to chance."""

from __future__ import annotations

import altair as alt
import pandas as pd

from mimokit.charts import _axes, _palette
from mimokit.charts._table import inline, layered, need, records

WHOLE = "whole answer"
DIGIT = "single digit"
CHANCE = "chance"
MEASURES = {WHOLE: "exact_match", DIGIT: "digit_accuracy", CHANCE: "chance"}


def accuracy(evaluations: pd.DataFrame) -> alt.LayerChart:
    """Return the share of right answers over the run, and what guessing would reach."""
    need(evaluations, "accuracy", "iteration", "exact_match")
    rows = []
    for row in records(evaluations):
        for measure, column in MEASURES.items():
            if pd.notna(row.get(column)):
                place = {"iteration": row["iteration"], "task": row.get("task") or ""}
                rows.append({**place, "measure": measure, "share": row[column]})
    encoded = alt.Chart(inline(rows)).encode(
        x=_axes.iterations(),
        y=_axes.amount("share", "%", top=1.0),
        color=alt.Color("measure:N", scale=_colors(), legend=_axes.legend_above("stroke")),
        strokeDash=alt.StrokeDash(
            "measure:N", scale=_dashes(), legend=_axes.legend_above("stroke")
        ),
        detail="task:N",
        tooltip=["task:N", "measure:N", "iteration:Q", alt.Tooltip("share:Q", format=".1%")],
    )
    points = encoded.transform_filter(f"datum.measure != '{CHANCE}'").mark_point(
        filled=True, size=30, opacity=1
    )
    chart: alt.LayerChart = layered(
        encoded.mark_line(strokeWidth=1.8),
        points.encode(shape=alt.Shape("task:N", legend=_task_legend(evaluations))),
    ).properties(
        title=alt.TitleParams("Accuracy", subtitle="on held-out samples"),
        description="Share of right answers over the run, next to chance",
    )
    return chart


def _task_legend(evaluations: pd.DataFrame) -> alt.Legend | None:
    several = "task" in evaluations.columns and evaluations["task"].nunique() > 1
    return _axes.legend_above("circle") if several else None


def _colors() -> alt.Scale:
    return alt.Scale(
        domain=[WHOLE, DIGIT, CHANCE], range=[_palette.ACCENT, _palette.LINE, _palette.MUTED]
    )


def _dashes() -> alt.Scale:
    return alt.Scale(domain=[WHOLE, DIGIT, CHANCE], range=[[1, 0], [1, 0], [4, 4]])
