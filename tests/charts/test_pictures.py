"""The check of drawn charts finds what was planted: marks and texts that cannot be read."""

from typing import Any

import pytest

from mimokit.charts import _palette, _renderer
from tests.charts.pictures import faults


def drawn(chart: Any) -> str:
    return str(_renderer.svg(chart.to_dict()))


def test_unseen_and_cut_off_marks_are_found() -> None:
    import altair as alt

    values = [{"kind": "measured", "x": 1, "stop": 3}, {"kind": "measured", "x": 4, "stop": 7}]
    bars = (
        alt.Chart(alt.Data(values=values))
        .mark_bar()
        .encode(x=alt.X("x:Q", title="seconds"), x2="stop:Q")
    )
    assert faults(drawn(bars)) == []
    scale = alt.Scale(domain=["measured"], range=[1.0])
    blank = bars.encode(opacity=alt.Opacity("kind:N", scale=scale))
    assert "none of its 2 marks can be seen" in faults(drawn(blank))
    cut_off = bars.encode(
        x=alt.X("x:Q", title="seconds", scale=alt.Scale(domain=[0, 1]))
    ).properties(autosize="none")
    assert any(fault.startswith("a mark at ") for fault in faults(drawn(cut_off)))


def named(color: str = "#000000", text: str = "rank 0", y: float = 20.0) -> Any:
    """Return a bar with its name in it, and the name of another next to it."""
    import altair as alt

    base = alt.Chart(alt.Data(values=[{"start": 0, "stop": 9, "text": text}]))
    x, y2 = alt.X("start:Q", title="samples"), alt.value(30)
    bar = base.mark_bar(color="#D55E00").encode(x=x, x2="stop:Q", y=alt.value(0), y2=y2)
    inside = base.mark_text(align="left", dx=4, color=color).encode(
        x=x, y=alt.value(15), text="text:N"
    )
    outside = "currentColor" if y > 30 else "#000000"
    other = base.mark_text(align="left", dx=4, color=outside).encode(x=x, y=alt.value(y))
    return alt.layer(bar, inside, other.encode(text=alt.value("rank 1")))


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"color": "#FFFFFF", "y": 60}, "'rank 0' has a contrast of 3.9 : 1"),
        ({"y": 18}, "'rank 0' lies on 'rank 1'"),
        ({"text": "1.806e+08 B", "y": 60}, "1.806e+08 in '1.806e+08 B' has too many digits"),
        ({"text": "0.123456 s", "y": 60}, "0.123456 in '0.123456 s' has too many digits"),
    ],
)
def test_texts_that_cannot_be_read_are_found(changed: dict[str, Any], fault: str) -> None:
    assert faults(drawn(named(y=60))) == []
    assert faults(drawn(named(**changed))) == [fault]


def test_an_axis_of_numbers_needs_a_title() -> None:
    import altair as alt

    values = alt.Data(values=[{"x": 1, "y": 2, "name": "a"}, {"x": 3, "y": 4, "name": "b"}])
    points = alt.Chart(values).mark_point().encode(x=alt.X("x:Q", title="iteration"))
    (found,) = faults(drawn(points.encode(y=alt.Y("y:Q", title=None))))
    assert found.startswith("an axis has no title: Y-axis for a linear scale")
    assert faults(drawn(points.encode(y=alt.Y("y:Q", title="seconds")))) == []
    assert faults(drawn(points.encode(y=alt.Y("name:N", title=None)))) == []


def test_ink_can_be_read_on_every_colour_of_the_palette() -> None:
    colors = [*_palette.STEP_COLORS.values(), *_palette.place_colors(12), *_palette.HEAT]
    for color in colors:
        lights = sorted(map(_palette.luminance, (color, _palette.ink_on(color))))
        assert (lights[1] + 0.05) / (lights[0] + 0.05) >= 4.5, color
