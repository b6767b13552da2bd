"""Step time of every rank over the run, as a heat map."""

from __future__ import annotations

import altair as alt
import pandas as pd

from mimokit.charts import _palette
from mimokit.charts._axes import need
from mimokit.charts._heat_map import cells, heat_map


def step_times(steps: pd.DataFrame) -> alt.Chart:
    """Return the time of a step, rank by rank over the run, in milliseconds.

    A long run has at most 100 columns, each the mean of its iterations. The colours range from half
    to one and a half times the median, so that noise stays pale and one slow start does not make
    everything else pale.
    """
    need(steps, "step_times", "iteration", "total_time")
    table = steps if "rank" in steps.columns else steps.assign(rank=0)
    times = cells(table.assign(ms=table["total_time"] * 1000), "ms", 2)
    median = float(times["ms"].median()) if len(times) else 1.0
    colors = alt.Scale(domain=_around(median), range=list(_palette.HEAT), clamp=True)
    chart: alt.Chart = heat_map(times, "ms", colors, tooltip=".1f", legend=".0f").properties(
        title=alt.TitleParams("Step time", subtitle="milliseconds, rank by rank"),
        description="Heat map of the step time, ranks by iterations",
    )
    return chart


def _around(median: float) -> list[float]:
    """Return the values of the colours of the palette, in its order."""
    steps = len(_palette.HEAT) - 1
    return [median * (0.5 + step / steps) for step in range(steps + 1)]
