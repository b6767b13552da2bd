"""The validation loss of fits under strategies, laid over each other."""

from __future__ import annotations

from typing import Literal, TypeAlias

import altair as alt
import pandas as pd

from mimokit.charts import _axes
from mimokit.charts._axes import columns, layered, need
from mimokit.result_files import PREDICTED_SECONDS

Over: TypeAlias = Literal["step", "sent_bytes", "predicted_seconds"]
TITLES = {
    "step": "optimizer steps",
    "sent_bytes": "bytes that a node has sent",
    PREDICTED_SECONDS: "predicted seconds",
}


def validation_losses(table: pd.DataFrame, over: Over = "step") -> alt.LayerChart:
    """Return the validation loss of the mean of all nodes' weights, a line per fit.

    Axes of losses and bytes are logarithmic where values are of different magnitudes. Over bytes,
    validations before the first exchange are left out.

    Args:
        table: from `mimokit.analysis.validation_of_fits`.
        over: what the horizontal axis has. Predicted times need fits with a network.

    Raises:
        ValueError: the table lacks a column, or `over` is unknown.
    """
    if over not in TITLES:
        raise ValueError(f"The axis {over!r} is unknown; choose one of {', '.join(TITLES)}.")
    need(table, "validation_losses", "fit", "step", "loss", over)
    names = list(dict.fromkeys(map(str, table["fit"])))
    color, dash = _axes.named_lines("fit", names)
    shown = table[table[over].notna() & table["loss"].notna()]
    across = alt.Scale(zero=True, nice=False)
    if over == "sent_bytes":
        shown = shown[shown[over] > 0]
        across = _axes.wide_scale(shown[over])
    shown_columns = ["fit", "step", "loss", *({over} - {"step"})]
    base = alt.Chart(columns(shown, shown_columns)).encode(
        x=alt.X(
            f"{over}:Q",
            title=TITLES[over],
            axis=alt.Axis(grid=False, format="~s", tickCount=6),
            scale=across,
        ),
        y=alt.Y(
            "loss:Q",
            title=None,
            axis=alt.Axis(format="~g", tickCount=5, minExtent=_axes.LEFT),
            scale=_axes.wide_scale(shown["loss"]),
        ),
        color=color,
        tooltip=["fit:N", *(f"{name}:Q" for name in shown_columns[1:])],
    )
    chart: alt.LayerChart = layered(
        base.mark_line(strokeWidth=1.8, opacity=0.85).encode(strokeDash=dash),
        base.mark_point(filled=True, size=18, opacity=1),
    ).properties(
        title=alt.TitleParams("Validation loss", subtitle="of the mean of all nodes' weights"),
        description=f"Validation loss over {TITLES[over]} of {len(names)} fits",
    )
    return chart
