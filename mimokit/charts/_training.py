"""All charts of a run in one chart."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from mimokit.charts._curves import accuracy, loss, throughput
from mimokit.charts._heat_maps import step_times
from mimokit.charts._phases import phases

WIDTH = 380
HEIGHT = 150
INDEPENDENT: dict[str, Any] = dict.fromkeys(
    ("color", "fill", "stroke", "shape", "strokeDash"), "independent"
)


def training(
    steps: pd.DataFrame,
    evaluations: pd.DataFrame | None = None,
    title: str = "Training",
    sentence: str = "",
    warmup_iterations: int = 0,
) -> alt.VConcatChart:
    """Return loss, accuracy, throughput and the time of every rank in one chart.

    Args:
        steps: a step table with at least one row.
        evaluations: an evaluation table, if there were evaluations.
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
