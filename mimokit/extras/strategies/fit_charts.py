"""Fits under several strategies: their losses, how far nodes are apart, and what they send."""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import altair as alt
import pandas as pd

from mimokit.charts import _axes, _palette
from mimokit.charts._axes import columns, inline, layered, need, records, titled
from mimokit.result_files import PREDICTED_SECONDS
from mimokit.units import bytes_text, counted

Over: TypeAlias = Literal["step", "sent_bytes", "predicted_seconds"]
TITLES = {
    "step": "optimizer steps",
    "sent_bytes": "bytes that a node has sent",
    PREDICTED_SECONDS: "predicted seconds",
}
WIDTH, HEIGHT = 270, 170
MEASURES = {
    "mean_correlation": ("Correlation", "of two nodes' weights, mean over all pairs"),
    "largest_distance": ("Largest distance", "between the weights of two nodes"),
}
MOST_BARS = 240
"""Bars of a fit; of longer fits each is the largest of successive steps."""
ROW = 34
"""Pixels of the height of a fit."""
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
"""Lines beyond the number of hues differ in their dashes."""
WIDE_RANGE = 10.0
"""Times the smallest value from which an axis is logarithmic."""


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
    color, dash = _lines(names)
    shown = table[table[over].notna() & table["loss"].notna()]
    scale = None
    if over == "sent_bytes":
        shown = shown[shown[over] > 0]
        scale = _wide_scale(shown[over])
    shown_columns = ["fit", "step", "loss", *({over} - {"step"})]
    base = alt.Chart(columns(shown, shown_columns)).encode(
        x=_axes.over(over, TITLES[over], "~s", 6, scale),
        y=_axes.amount("loss", "loss", "~g", _wide_scale(shown["loss"])),
        color=color,
        tooltip=["fit:N", *(f"{name}:Q" for name in shown_columns[1:])],
    )
    layers = layered(
        base.mark_line(strokeWidth=1.8, opacity=0.85).encode(strokeDash=dash),
        base.mark_point(filled=True, size=18, opacity=1),
    )
    subtitle = "of the mean of all nodes' weights"
    description = f"Validation loss over {TITLES[over]} of {counted(len(names), 'fit')}"
    return titled(layers, "Validation loss", subtitle, description)


def drift(table: pd.DataFrame) -> alt.HConcatChart:
    """Return correlation and largest distance of the nodes' weights over steps, a line per fit.

    Args:
        table: from `mimokit.analysis.drift_of_fits`.
    """
    need(table, "drift", "fit", "step", *MEASURES)
    names = list(dict.fromkeys(map(str, table["fit"])))
    chart: alt.HConcatChart = alt.hconcat(
        *(_panel(table, names, measure) for measure in MEASURES), spacing=30
    ).properties(description=f"Drift of the nodes over the steps of {counted(len(names), 'fit')}")
    return chart


def _panel(table: pd.DataFrame, names: list[str], measure: str) -> alt.Chart:
    color, dash = _lines(names)
    title, subtitle = MEASURES[measure]
    chart: alt.Chart = (
        alt.Chart(columns(table, ["fit", "step", measure]))
        .mark_line(strokeWidth=1.8, opacity=0.85, point={"size": 18, "opacity": 1})
        .encode(
            x=_axes.over("step", TITLES["step"], "d", 6),
            y=_axes.amount(
                measure, title.lower(), "~g", alt.Scale(zero=measure == "largest_distance")
            ),
            color=color,
            strokeDash=dash,
            tooltip=["fit:N", "step:Q", alt.Tooltip(f"{measure}:Q", format=".4~g")],
        )
        .properties(width=WIDTH, height=HEIGHT, title=alt.TitleParams(title, subtitle=subtitle))
    )
    return chart


def step_bytes(table: pd.DataFrame) -> alt.FacetChart:
    """Return the bytes that a node sends after each step, a row of bars per fit.

    The scale is that of square roots, so that small exchanges can be seen next to large ones.

    Args:
        table: from `mimokit.analysis.bytes_of_fits`.
    """
    need(table, "step_bytes", "fit", "step", "sent_bytes")
    names = list(dict.fromkeys(map(str, table["fit"])))
    most = int(table["step"].max()) if len(table) else 1
    every = -(-most // MOST_BARS)
    labels = {name: _label(name, table[table["fit"] == name]["sent_bytes"]) for name in names}
    rows = [
        {**row, "fit": labels[str(row["fit"])], "stop": row["first"] + every}
        for row in records(_largest(table[table["sent_bytes"] > 0], every))
    ]
    bars = alt.Chart(inline(rows)).mark_rect(color=_palette.LINE)
    scale = alt.Scale(domain=[0, max(1, most)], nice=False)
    x = _axes.over("first", TITLES["step"], "d", scale=scale)
    y = alt.Y(
        "sent_bytes:Q",
        title=None,
        axis=alt.Axis(labels=False, values=[0]),
        scale=alt.Scale(type="sqrt", zero=True),
    )
    header = alt.Header(labelAngle=0, labelAlign="left", labelPadding=10, labelLimit=320)
    row = alt.Row("fit:N", title=None, sort=list(labels.values()), header=header)
    bars = bars.encode(x=x, x2="stop:Q", y=y, y2=alt.datum(0), tooltip=["fit:N", "sent_bytes:Q"])
    facets: alt.FacetChart = bars.properties(height=ROW).facet(row=row, spacing=8)
    return titled(
        facets,
        "Bytes per step",
        "that a node sends for the strategy; bars by their square roots",
        f"Bytes that a node sends after each step of {counted(len(names), 'fit')}",
    )


def _largest(table: pd.DataFrame, every: int) -> pd.DataFrame:
    first = (table["step"] - 1) // every * every
    groups = table.assign(first=first).groupby(["fit", "first"], as_index=False, sort=False)
    bytes_of_step: pd.DataFrame = groups[["sent_bytes"]].max()
    return bytes_of_step


def _label(name: str, sent: pd.Series) -> str:
    mean, most = (bytes_text(round(value)) for value in (sent.mean(), sent.max()))
    return f"{name}: mean {mean}, largest {most}"


def _lines(names: Sequence[str]) -> tuple[alt.Color, alt.StrokeDash]:
    """Return colour and dashes of a line for each fit, with one legend."""
    hues = _palette.module_colors(names)
    count = len(set(hues.values()))
    dashes = [DASHES[place // count % len(DASHES)] for place in range(len(names))]
    legend = _axes.legend_above("stroke", columns=3)
    legend["symbolSize"] = 500  # long enough to show the dashes
    color = alt.Scale(domain=list(names), range=list(hues.values()))
    dash = alt.Scale(domain=list(names), range=dashes)
    return (
        alt.Color("fit:N", scale=color, legend=legend),
        alt.StrokeDash("fit:N", scale=dash, legend=legend),
    )


def _wide_scale(values: Iterable[float]) -> alt.Scale:
    """Return a scale of numbers above 0: logarithmic if they are of different magnitudes."""
    known = [value for value in values if value > 0]
    wide = bool(known) and max(known) > WIDE_RANGE * min(known)
    return alt.Scale(type="log", nice=False) if wide else alt.Scale(zero=False)
