"""Curves over a run: loss, accuracy on held-out samples, tokens per second."""

from __future__ import annotations

import altair as alt
import pandas as pd

from mimokit.analysis import per_iteration, without_warmup
from mimokit.charts import _axes, _palette
from mimokit.charts._axes import columns, inline, layered, need, records

TRAINING, VALIDATION, HELD_OUT = "training", "validation", "held-out samples"
LOSS_COLORS = {
    TRAINING: _palette.LINE,
    VALIDATION: _palette.STEP_COLORS["matrix"],
    HELD_OUT: _palette.ACCENT,
}
WHOLE, DIGIT, CHANCE = "whole answer", "single digit", "chance"
MEASURES = {WHOLE: "exact_match", DIGIT: "digit_accuracy", CHANCE: "chance"}
RATES = ("tokens_per_sec", "samples_per_sec")
EACH, MEDIAN = "each iteration", "median after warm-up"


def loss(steps: pd.DataFrame, evaluations: pd.DataFrame | None = None) -> alt.LayerChart:
    """Return the training loss per iteration, and those of validations and evaluations."""
    need(steps, "loss", "iteration", "loss")
    iterations = per_iteration(steps)
    line = (
        alt.Chart(columns(iterations, ["iteration", "loss"]))
        .transform_calculate(on=f"'{TRAINING}'")
        .mark_line(strokeWidth=1.8)
        .encode(
            x=_axes.iterations(),
            y=_axes.amount("loss", "~g"),
            tooltip=["iteration:Q", alt.Tooltip("loss:Q", format=".4f")],
        )
    )
    layers = {
        TRAINING: [line],
        VALIDATION: _validated(iterations),
        HELD_OUT: _held_out(evaluations),
    }
    color = _loss_color([name for name, drawn in layers.items() if drawn])
    of_tokens = "tokens_per_sec" in iterations.columns
    chart: alt.LayerChart = layered(
        *(layer.encode(color=color) for drawn in layers.values() for layer in drawn)
    ).properties(
        title=alt.TitleParams("Loss", subtitle="mean over the unmasked tokens" * of_tokens),
        description=f"Loss over {len(iterations)} iterations",
    )
    return chart


def _validated(iterations: pd.DataFrame) -> list[alt.Chart]:
    if "validation_loss" not in iterations.columns:
        return []
    known = iterations[iterations["validation_loss"].notna()]
    if known.empty:
        return []
    return [
        alt.Chart(columns(known, ["iteration", "validation_loss"]))
        .transform_calculate(on=f"'{VALIDATION}'")
        .mark_line(strokeWidth=1.2, point={"size": 24})
        .encode(
            x="iteration:Q",
            y="validation_loss:Q",
            tooltip=["iteration:Q", alt.Tooltip("validation_loss:Q", format=".4f")],
        )
    ]


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
            shape=alt.Shape("task:N", legend=_task_legend(evaluations)),
            tooltip=["task:N", "iteration:Q", alt.Tooltip("loss:Q", format=".4f")],
        )
    ]


def _loss_color(shown: list[str]) -> alt.Color:
    return alt.Color(
        "on:N",
        scale=alt.Scale(domain=shown, range=[LOSS_COLORS[name] for name in shown]),
        legend=_axes.legend_above("stroke"),
    )


def accuracy(evaluations: pd.DataFrame) -> alt.LayerChart:
    """Return the share of right answers over the run, and the chance level."""
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
        color=alt.Color("measure:N", scale=_accuracy_colors(), legend=_axes.legend_above("stroke")),
        strokeDash=alt.StrokeDash(
            "measure:N", scale=_accuracy_dashes(), legend=_axes.legend_above("stroke")
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


def _accuracy_colors() -> alt.Scale:
    return alt.Scale(
        domain=[WHOLE, DIGIT, CHANCE], range=[_palette.ACCENT, _palette.LINE, _palette.MUTED]
    )


def _accuracy_dashes() -> alt.Scale:
    return alt.Scale(domain=[WHOLE, DIGIT, CHANCE], range=[[1, 0], [1, 0], [4, 4]])


def throughput(steps: pd.DataFrame, warmup_iterations: int = 0) -> alt.LayerChart:
    """Return tokens per second of all ranks together, with the median after the warm-up.

    Samples instead, where the model has no tokens.
    """
    column = RATES[0] if RATES[0] in steps.columns or RATES[1] not in steps.columns else RATES[1]
    need(steps, "throughput", "iteration", column)
    what = f"{column.split('_')[0].capitalize()} per second"
    iterations = per_iteration(steps)
    median = float(without_warmup(iterations, warmup_iterations)[column].median())
    line = (
        alt.Chart(columns(iterations, ["iteration", column]))
        .transform_calculate(what=f"'{EACH}'")
        .mark_line(strokeWidth=1.4)
        .encode(
            x=_axes.iterations(),
            y=_axes.amount(column, "~s"),
            color=_throughput_color(),
            tooltip=["iteration:Q", alt.Tooltip(f"{column}:Q", format=",.0f")],
        )
    )
    rule = (
        alt.Chart(inline([{"median": median}]))
        .transform_calculate(what=f"'{MEDIAN}'")
        .mark_rule(strokeDash=[4, 4])
        .encode(y="median:Q", color=_throughput_color())
    )
    chart: alt.LayerChart = layered(line, rule).properties(
        title=alt.TitleParams(what, subtitle=f"all ranks together; median {median:,.0f}"),
        description=f"{what} over {len(iterations)} iterations",
    )
    return chart


def _throughput_color() -> alt.Color:
    return alt.Color(
        "what:N",
        scale=alt.Scale(domain=[EACH, MEDIAN], range=[_palette.LINE, _palette.ACCENT]),
        legend=_axes.legend_above("stroke"),
    )
