"""How far the nodes of fits are apart."""

from __future__ import annotations

import altair as alt
import pandas as pd

from mimokit.charts import _axes
from mimokit.charts._axes import columns, need

WIDTH, HEIGHT = 270, 170
MEASURES = {
    "mean_correlation": ("Correlation", "of two nodes' weights, mean over all pairs"),
    "largest_distance": ("Largest distance", "between the weights of two nodes"),
}


def drift(table: pd.DataFrame) -> alt.HConcatChart:
    """Return correlation and largest distance of the nodes' weights over steps, a line per fit.

    Args:
        table: from `mimokit.analysis.drift_of_fits`.
    """
    need(table, "drift", "fit", "step", *MEASURES)
    names = list(dict.fromkeys(map(str, table["fit"])))
    chart: alt.HConcatChart = alt.hconcat(
        *(_panel(table, names, measure) for measure in MEASURES), spacing=30
    ).properties(description=f"Drift of the nodes over the steps of {len(names)} fits")
    return chart


def _panel(table: pd.DataFrame, names: list[str], measure: str) -> alt.Chart:
    color, dash = _axes.named_lines("fit", names)
    title, subtitle = MEASURES[measure]
    chart: alt.Chart = (
        alt.Chart(columns(table, ["fit", "step", measure]))
        .mark_line(strokeWidth=1.8, opacity=0.85, point={"size": 18, "opacity": 1})
        .encode(
            x=alt.X(
                "step:Q",
                title="optimizer steps",
                axis=alt.Axis(grid=False, format="d", tickCount=6),
                scale=alt.Scale(zero=True, nice=False),
            ),
            y=alt.Y(
                f"{measure}:Q",
                title=None,
                axis=alt.Axis(format="~g", tickCount=5, minExtent=_axes.LEFT),
                scale=alt.Scale(zero=measure == "largest_distance"),
            ),
            color=color,
            strokeDash=dash,
            tooltip=["fit:N", "step:Q", alt.Tooltip(f"{measure}:Q", format=".4~g")],
        )
        .properties(width=WIDTH, height=HEIGHT, title=alt.TitleParams(title, subtitle=subtitle))
    )
    return chart
