"""How far a layout is from one process, step by step."""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import altair as alt

from mimokit.charts import _palette
from mimokit.charts._axes import inline, layered, titled

LEAST = 1e-9
"""Where a logarithmic axis begins, and what is as little or less is drawn, called 0."""
WIDTH, HEIGHT = 520, 150


class Differences(Protocol):
    """What of a `VerificationReport` is drawn."""

    @property
    def tolerance(self) -> float: ...
    @property
    def loss_differences(self) -> tuple[float, ...]: ...
    @property
    def gradient_differences(self) -> Sequence[Mapping[str, float]]: ...
    @property
    def weight_differences(self) -> Sequence[Mapping[str, float]]: ...
    @property
    def passed(self) -> bool: ...


def proof(report: Differences) -> alt.LayerChart:
    """Return the differences of loss, gradients and weights after each step, below the tolerance.

    Of gradients and weights the largest over modules, tensors and ranks, relative to the largest
    entry of its tensor.
    """
    kinds = {
        "loss": list(report.loss_differences),
        "gradients": [max(step.values(), default=0.0) for step in report.gradient_differences],
        "weights": [max(step.values(), default=0.0) for step in report.weight_differences],
    }
    rows = [
        {"step": number, "kind": kind, "shown": max(value, LEAST), "difference": f"{value:.1e}"}
        for kind, values in kinds.items()
        for number, value in enumerate(values, start=1)
        if math.isfinite(value)
    ]
    top = max([report.tolerance, *(float(str(row["shown"])) for row in rows)])
    x = alt.X("step:O", title="optimizer step", axis=alt.Axis(labelAngle=0))
    y = alt.Y(
        "shown:Q",
        title="difference from one process",
        scale=alt.Scale(type="log", domain=[LEAST, 10 * top]),
        axis=alt.Axis(
            values=[10.0**power for power in range(-9, math.ceil(math.log10(top)) + 1, 2)],
            labelExpr=f"datum.value <= {LEAST} ? '0' : format(datum.value, '.0e')",
        ),
    )
    kind = alt.Shape("kind:N", title=None, sort=list(kinds))
    points = (
        alt.Chart(inline(rows))
        .mark_point(size=70, filled=True, opacity=1, color=_palette.LINE)
        .encode(x=x, y=y, shape=kind, tooltip=["kind:N", "step:O", "difference:N"])
    )
    limit = inline([{"tolerance": report.tolerance, "text": f"tolerance {report.tolerance:.0e}"}])
    rule = alt.Chart(limit).mark_rule(color=_palette.ACCENT, strokeDash=[4, 3])
    text = alt.Chart(limit).mark_text(
        align="left", baseline="bottom", dx=4, dy=-3, color=_palette.TEXT
    )
    place = alt.Y("tolerance:Q", title="difference from one process")
    chart = layered(
        points, rule.encode(y=place), text.encode(y=place, x=alt.value(0), text="text:N")
    )
    return titled(
        chart,
        "Proof",
        _subtitle(kinds, report.passed),
        f"Differences from one process after each of {len(kinds['loss'])} steps",
        width=WIDTH,
        height=HEIGHT,
    )


def _subtitle(kinds: Mapping[str, Sequence[float]], passed: bool) -> str:
    largest = ", ".join(f"{kind} {_largest(values):.0e}" for kind, values in kinds.items())
    outcome = "computes" if passed else "does NOT compute"
    return f"the layout {outcome} what one process computes; largest differences: {largest}"


def _largest(values: Sequence[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values, default=0.0)
