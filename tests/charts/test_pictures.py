"""The check of drawn charts finds what was planted: marks that are unseen or cut off."""

from __future__ import annotations

import altair as alt

from mimokit.charts import _renderer
from tests.charts.pictures import faults


def drawn(chart: alt.Chart) -> str:
    return str(_renderer.svg(chart.to_dict()))


def test_unseen_and_cut_off_marks_are_found() -> None:
    values = [{"kind": "measured", "x": 1, "stop": 3}, {"kind": "measured", "x": 4, "stop": 7}]
    bars = alt.Chart(alt.Data(values=values)).mark_bar().encode(x="x:Q", x2="stop:Q")
    assert faults(drawn(bars)) == []
    scale = alt.Scale(domain=["measured"], range=[1.0])
    blank = bars.encode(opacity=alt.Opacity("kind:N", scale=scale))
    assert "none of its 2 marks can be seen" in faults(drawn(blank))
    cut_off = bars.encode(x=alt.X("x:Q", scale=alt.Scale(domain=[0, 1]))).properties(
        autosize="none"
    )
    assert any(fault.startswith("a mark at ") for fault in faults(drawn(cut_off)))
