"""Curves over a run: loss, accuracy, tokens per second; and all charts of a run in one."""

from typing import Any

import altair as alt
import pandas as pd

from mimokit.analysis import per_iteration, without_warmup
from mimokit.charts import _axes, _palette
from mimokit.charts._axes import columns, inline, layered, need, records, titled
from mimokit.charts._heat_maps import step_times
from mimokit.charts._phases import phases

TRAINING, VALIDATION, HELD_OUT = "training", "validation", "held-out samples"
LOSS_COLORS = {
    TRAINING: _palette.LINE,
    VALIDATION: _palette.STEP_COLORS["matrix"],
    HELD_OUT: _palette.ACCENT,
}
WHOLE, DIGIT, CHANCE = "whole answer", "single digit", "chance"
MEASURES = {WHOLE: "exact_match", DIGIT: "digit_accuracy", CHANCE: "chance"}
MEASURE_COLORS = {WHOLE: _palette.ACCENT, DIGIT: _palette.LINE, CHANCE: _palette.MUTED}
RATES = ("tokens_per_sec", "samples_per_sec")
EACH, MEDIAN = "each iteration", "median after warm-up"
WIDTH, HEIGHT = 380, 150
"""Pixels of a chart among all charts of a run."""
INDEPENDENT: dict[str, Any] = dict.fromkeys(
    ("color", "fill", "stroke", "shape", "strokeDash"), "independent"
)


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
            y=_axes.amount("loss", "loss", "~g"),
            tooltip=["iteration:Q", alt.Tooltip("loss:Q", format=".4f")],
        )
    )
    layers = {
        TRAINING: [line],
        VALIDATION: _validated(iterations),
        HELD_OUT: _held_out(evaluations),
    }
    shown = {name: LOSS_COLORS[name] for name, drawn in layers.items() if drawn}
    color = _axes.colored("on", shown, "stroke")
    of_tokens = "tokens_per_sec" in iterations.columns
    return titled(
        layered(*(layer.encode(color=color) for drawn in layers.values() for layer in drawn)),
        "Loss",
        "mean over the unmasked tokens" if of_tokens else "",
        f"Loss over {len(iterations)} iterations",
    )


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
        y=_axes.amount("share", "share of answers", "%", alt.Scale(domain=[0, 1.0])),
        color=_axes.colored("measure", MEASURE_COLORS, "stroke"),
        strokeDash=alt.StrokeDash(
            "measure:N",
            scale=alt.Scale(domain=list(MEASURE_COLORS), range=[[1, 0], [1, 0], [4, 4]]),
            legend=_axes.legend_above("stroke"),
        ),
        detail="task:N",
        tooltip=["task:N", "measure:N", "iteration:Q", alt.Tooltip("share:Q", format=".1%")],
    )
    points = encoded.transform_filter(f"datum.measure != '{CHANCE}'").mark_point(
        filled=True, size=30, opacity=1
    )
    layers = layered(
        encoded.mark_line(strokeWidth=1.8),
        points.encode(shape=alt.Shape("task:N", legend=_task_legend(evaluations))),
    )
    description = "Share of right answers over the run, next to chance"
    return titled(layers, "Accuracy", "on held-out samples", description)


def _task_legend(evaluations: pd.DataFrame) -> alt.Legend | None:
    several = "task" in evaluations.columns and evaluations["task"].nunique() > 1
    return _axes.legend_above("circle") if several else None


def throughput(steps: pd.DataFrame, warmup_iterations: int = 0) -> alt.LayerChart:
    """Return tokens per second of all ranks together, with the median after the warm-up.

    Samples instead, where the model has no tokens.
    """
    column = RATES[0] if RATES[0] in steps.columns or RATES[1] not in steps.columns else RATES[1]
    need(steps, "throughput", "iteration", column)
    what = f"{column.split('_')[0].capitalize()} per second"
    iterations = per_iteration(steps)
    median = float(without_warmup(iterations, warmup_iterations)[column].median())
    color = _axes.colored("what", {EACH: _palette.LINE, MEDIAN: _palette.ACCENT}, "stroke")
    line = (
        alt.Chart(columns(iterations, ["iteration", column]))
        .transform_calculate(what=f"'{EACH}'")
        .mark_line(strokeWidth=1.4)
        .encode(
            x=_axes.iterations(),
            y=_axes.amount(column, what.lower(), "~s"),
            color=color,
            tooltip=["iteration:Q", alt.Tooltip(f"{column}:Q", format=",.0f")],
        )
    )
    rule = (
        alt.Chart(inline([{"median": median}]))
        .transform_calculate(what=f"'{MEDIAN}'")
        .mark_rule(strokeDash=[4, 4])
        .encode(y="median:Q", color=color)
    )
    subtitle = f"all ranks together; median {median:,.0f}"
    return titled(layered(line, rule), what, subtitle, f"{what} over {len(iterations)} iterations")


def training(
    steps: pd.DataFrame,
    evaluations: pd.DataFrame | None = None,
    title: str = "Training",
    sentence: str = "",
    warmup_iterations: int = 0,
) -> alt.VConcatChart:
    """Return loss, accuracy, throughput and the time of every rank in one chart.

    Args:
        sentence: below the title, such as how the run ended.
        warmup_iterations: leading iterations left out of medians and phase times.
    """
    size = {"width": WIDTH, "height": HEIGHT}
    curves: list[alt.LayerChart] = [loss(steps, evaluations).properties(**size)]
    if evaluations is not None and not evaluations.empty:
        curves.append(accuracy(evaluations).properties(**size))
    rows: list[alt.HConcatChart] = [_next_to(*curves)]
    if "total_time" in steps.columns:  # absent if the performance monitor is off
        rows += [
            _next_to(
                throughput(steps, warmup_iterations).properties(**size),
                step_times(steps).properties(width=WIDTH),
            ),
            _next_to(phases(steps, warmup_iterations).properties(width=2 * WIDTH)),
        ]
    chart: alt.VConcatChart = (
        alt.vconcat(*rows, spacing=26)
        .resolve_scale(**INDEPENDENT)
        .properties(
            title=alt.TitleParams(title, subtitle=sentence, fontSize=16),
            description=f"{title}: loss, accuracy, tokens per second and time of every rank",
        )
    )
    return chart


def _next_to(*charts: alt.Chart | alt.LayerChart) -> alt.HConcatChart:
    row: alt.HConcatChart = alt.hconcat(*charts, spacing=40).resolve_scale(**INDEPENDENT)
    return row
