"""Tokens per second over a run."""

from __future__ import annotations

import altair as alt
import pandas as pd

from mimokit.analysis import per_iteration, without_warmup
from mimokit.charts import _axes, _palette
from mimokit.charts._table import columns, inline, layered, need

EVERY = "each iteration"
MEDIAN = "median after warm-up"


def throughput(steps: pd.DataFrame, warmup_iterations: int = 0) -> alt.LayerChart:
    """Return tokens per second of all ranks together, with the median after the warm-up."""
    need(steps, "throughput", "iteration", "tokens_per_sec")
    iterations = per_iteration(steps)
    median = float(without_warmup(iterations, warmup_iterations)["tokens_per_sec"].median())
    line = (
        alt.Chart(columns(iterations, ["iteration", "tokens_per_sec"]))
        .transform_calculate(what=f"'{EVERY}'")
        .mark_line(strokeWidth=1.4)
        .encode(
            x=_axes.iterations(),
            y=_axes.amount("tokens_per_sec", "~s"),
            color=_color(),
            tooltip=["iteration:Q", alt.Tooltip("tokens_per_sec:Q", format=",.0f")],
        )
    )
    rule = (
        alt.Chart(inline([{"median": median}]))
        .transform_calculate(what=f"'{MEDIAN}'")
        .mark_rule(strokeDash=[4, 4])
        .encode(y="median:Q", color=_color())
    )
    chart: alt.LayerChart = layered(line, rule).properties(
        title=alt.TitleParams(
            "Tokens per second", subtitle=f"all ranks together; median {median:,.0f}"
        ),
        description=f"Tokens per second over {len(iterations)} iterations",
    )
    return chart


def _color() -> alt.Color:
    return alt.Color(
        "what:N",
        scale=alt.Scale(domain=[EVERY, MEDIAN], range=[_palette.LINE, _palette.ACCENT]),
        legend=_axes.legend_above("stroke"),
    )
