"""The predicted step of each run next to the measured one."""

from __future__ import annotations

import altair as alt
import pandas as pd

from mimokit.charts import _axes, _palette
from mimokit.charts._axes import inline, layered, need, records

SIDES = {"measured": _palette.LINE, "planned": _palette.ACCENT}
_MILLISECONDS = 1e3


def planned_and_measured(table: pd.DataFrame) -> alt.LayerChart:
    """Return the median step of each run as a bar, and its prediction as a mark with its band.

    Args:
        table: from `mimokit.analysis.planned_against_measured`.
    """
    need(table, "planned_and_measured", "run", "planned", "planned_low", "planned_high")
    need(table, "planned_and_measured", "measured", "low", "high", "error")
    seconds = ("planned", "planned_low", "planned_high", "measured", "low", "high")
    rows = [
        {**row, **{name: row[name] * _MILLISECONDS for name in seconds}} for row in records(table)
    ]
    base = alt.Chart(inline(rows)).encode(
        y=alt.Y(
            "run:N", title=None, sort=[row["run"] for row in rows], axis=alt.Axis(labelLimit=320)
        ),
        tooltip=[
            "run:N",
            *(alt.Tooltip(f"{name}:Q", format=".1f") for name in seconds),
            alt.Tooltip("error:Q", format="+.1%"),
        ],
    )
    scale = alt.Scale(domain=list(SIDES), range=list(SIDES.values()))

    def colored(side: str) -> alt.Chart:
        return base.transform_calculate(side=f"'{side}'").encode(
            color=alt.Color("side:N", scale=scale, legend=_axes.legend_above())
        )

    axis = alt.X("measured:Q", title="milliseconds in a step")
    chart: alt.LayerChart = layered(
        colored("measured").mark_bar(height=alt.RelativeBandSize(0.6), opacity=0.55).encode(x=axis),
        base.mark_rule(color=_palette.INK, strokeWidth=2).encode(x="low:Q", x2="high:Q"),
        colored("planned")
        .mark_rule(strokeWidth=1.5, opacity=1)
        .encode(x="planned_low:Q", x2="planned_high:Q"),
        colored("planned").mark_tick(thickness=3, opacity=1).encode(x="planned:Q"),
    ).properties(
        height=alt.Step(24),
        title=alt.TitleParams(
            "Planned and measured step",
            subtitle=f"{table.attrs.get('how', 'predicted from the config')}; dark lines: "
            "intervals of the medians",
        ),
        description=f"Predicted and measured step time of {len(rows)} runs",
    )
    return chart
