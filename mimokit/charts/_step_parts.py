"""The parts of a predicted step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from mimokit.charts import _axes, _palette
from mimokit.charts._axes import inline, layered
from mimokit.prediction import PART_WORDS, Prediction


def step_parts(predictions: Prediction | Sequence[Prediction]) -> alt.LayerChart:
    """Return predicted steps as stacked bars in milliseconds, one per layout.

    The thin line at the end of a bar is the confidence band.

    Raises:
        ValueError: there is no prediction.
    """
    shown = [predictions] if isinstance(predictions, Prediction) else list(predictions)
    if not shown:
        raise ValueError("The chart step_parts needs at least one prediction.")
    names = [str(prediction.layout) for prediction in shown]
    rows = [row for prediction in shown for row in _rows(prediction)]
    keys = [
        PART_WORDS[part] for part in _palette.STEP_COLORS if any(r["name"] == part for r in rows)
    ]
    hues = {PART_WORDS[part]: hue for part, hue in _palette.STEP_COLORS.items()}
    bars = (
        alt.Chart(inline(rows))
        .mark_bar()
        .encode(
            x=alt.X("sum(ms):Q", title="milliseconds in a step", stack="zero"),
            y=_layouts(names),
            color=_axes.parts("part", keys, hues, columns=6),
            order="order:Q",
            tooltip=["layout:N", "part:N", alt.Tooltip("ms:Q", format=".1f")],
        )
    )
    chart: alt.LayerChart = layered(bars, _band(shown, names)).properties(
        height=alt.Step(26),
        title=alt.TitleParams("Step time", subtitle="by what it goes into; the line is the band"),
        description="Predicted step time per layout and part",
    )
    return chart


def _rows(prediction: Prediction) -> list[dict[str, Any]]:
    order = list(_palette.STEP_COLORS)
    return [
        {
            "layout": str(prediction.layout),
            "name": name,
            "part": PART_WORDS[name],
            "order": order.index(name),
            "ms": 1000 * seconds,
        }
        for name, seconds in prediction.parts.items()
        if seconds > 0
    ]


def _band(shown: Sequence[Prediction], names: list[str]) -> alt.Chart:
    rows = [
        {
            "layout": str(prediction.layout),
            "low": 1000 * prediction.low,
            "high": 1000 * prediction.high,
        }
        for prediction in shown
    ]
    chart: alt.Chart = (
        alt.Chart(inline(rows))
        .mark_rule(color=_palette.INK, strokeWidth=1.5)
        .encode(x="low:Q", x2="high:Q", y=_layouts(names))
    )
    return chart


def _layouts(names: list[str]) -> alt.Y:
    return alt.Y("layout:N", title=None, sort=names, axis=alt.Axis(labelLimit=420))
