"""Where the time of a step goes, predicted by layout."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from mimokit.charts import _axes, _palette
from mimokit.charts._axes import MILLISECONDS, inline, layered, titled
from mimokit.prediction import PART_WORDS, Prediction

SECONDS_FROM = 2.0
"""Steps that take as long have an axis in seconds."""


def step_parts(predictions: Prediction | Sequence[Prediction]) -> alt.LayerChart:
    """Return predicted steps as stacked bars in milliseconds, one per layout.

    The thin line at the end of a bar is the confidence band.

    Raises:
        ValueError: there is no prediction.
    """
    shown = [predictions] if isinstance(predictions, Prediction) else list(predictions)
    if not shown:
        raise ValueError("The chart step_parts needs at least one prediction.")
    lines = max(str(made.layout).count("; ") for made in shown) + 1
    layouts = alt.Y(
        "layout:N",
        title=None,
        sort=[str(made.layout) for made in shown],
        axis=alt.Axis(labelExpr="split(datum.label, '; ')", labelLimit=0, labelLineHeight=12),
    )
    unit = "s" if max(made.seconds for made in shown) >= SECONDS_FROM else "ms"
    rows = [row for prediction in shown for row in _parts(prediction)]
    colors = {PART_WORDS[part]: hue for part, hue in _palette.STEP_COLORS.items()}
    expression = f"datum.value / {MILLISECONDS:g}" if unit == "s" else "datum.value"
    time = alt.X("sum(ms):Q", title=f"{unit} in a step")
    bars = _axes.stacked(
        rows,
        time.axis(alt.Axis(labelExpr=f"format({expression}, ',~g')")),
        layouts,
        _axes.parts("part", rows, colors, columns=6),
        ["layout:N", "part:N", alt.Tooltip("ms:Q", format=".1f")],
    )
    bands = [
        {
            "layout": str(prediction.layout),
            "low": MILLISECONDS * prediction.low,
            "high": MILLISECONDS * prediction.high,
        }
        for prediction in shown
    ]
    band = alt.Chart(inline(bands)).mark_rule(color=_palette.TEXT, strokeWidth=1.5)
    return titled(
        layered(bars, band.encode(x="low:Q", x2="high:Q", y=layouts)),
        "Step time",
        "by what it goes into; the line is the band",
        "Predicted step time per layout and part",
        height=alt.Step(max(26, 13 * lines + 6)),
    )


def _parts(prediction: Prediction) -> list[dict[str, Any]]:
    order = list(_palette.STEP_COLORS)
    return [
        {
            "layout": str(prediction.layout),
            "name": name,
            "part": PART_WORDS[name],
            "order": order.index(name),
            "ms": MILLISECONDS * seconds,
        }
        for name, seconds in prediction.parts.items()
        if seconds > 0
    ]
