"""The prediction laid over the measurement."""

from __future__ import annotations

import pytest

from mimokit import charts
from mimokit.analysis import predicted_steps, samples_to_steps
from mimokit.charts import _renderer
from mimokit.prediction.local_cpu import RankSpan, SharedPrediction, Span
from tests.charts.fakes import samples
from tests.charts.pictures import faults

SPANS = (
    RankSpan(0, Span(None, "load"), 0.0, 0.01),
    RankSpan(0, Span("images", "forward"), 0.01, 0.03),
    RankSpan(0, Span("images", "gather"), 0.03, 0.04),
    RankSpan(0, Span("language_module", "forward"), 0.04, 0.08),
    RankSpan(0, Span("language_module", "backward"), 0.08, 0.13),
    RankSpan(0, Span("images", "backward"), 0.13, 0.15),
    RankSpan(0, Span(None, "grad-sync"), 0.15, 0.17),
    RankSpan(0, Span(None, "optimizer"), 0.17, 0.18),
    RankSpan(0, Span(None, "report"), 0.18, 0.19),
    RankSpan(1, Span(None, "load"), 0.0, 0.03),
)
PREDICTION = SharedPrediction("made up", 0.2, 2.0, (0.19, 0.03), 0.19, {}, SPANS)


def test_phases_are_means_over_ranks_and_add_up_to_the_step() -> None:
    phases = PREDICTION.phases()
    assert phases["", "data"] == pytest.approx((0.01 + 0.03) / 2)
    assert phases["language_module", "backward"] == pytest.approx(0.05 / 2)
    assert phases["", "communication"] == pytest.approx((0.01 + 0.02) / 2)
    assert sum(phases.values()) == pytest.approx(PREDICTION.seconds)


def test_bars_of_both_sides_add_up() -> None:
    steps = samples_to_steps(samples())
    chart = charts.predicted_phases({"made up": (PREDICTION, steps)}, 3)
    bundle = _renderer.bundle_of(chart)
    assert faults(bundle["image/svg+xml"]) == []
    spec = bundle[_renderer.MIME_TYPE]
    values = spec["datasets"][spec["data"]["name"]]
    sums = {
        side: sum(row["ms"] for row in values if row["side"] == side)
        for side in ("predicted", "measured")
    }
    used = steps[steps["iteration"] >= 3]
    assert sums["predicted"] == pytest.approx(200)
    assert sums["measured"] == pytest.approx(1000 * used["total_time"].mean())


def test_no_run_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least one run"):
        charts.predicted_phases({})


def test_the_steps_of_a_prediction_are_those_of_a_trace() -> None:
    spans = (
        *(
            RankSpan(0, Span("images", "forward"), 0.2, 0.3),
            RankSpan(0, Span("images", "backward"), 0.3, 0.5),
        ),
        *(
            RankSpan(0, Span("images", "forward"), 0.0, 0.1),
            RankSpan(0, Span(None, "receive-backward"), 0.1, 0.2),
        ),
        RankSpan(1, Span("images", "forward"), 0.0, 0.4),
    )
    table = predicted_steps(SharedPrediction("made up", 0.5, 2.0, (0.4, 0.4), 0.5, {}, spans))
    rows = table.astype(object).where(table.notna(), None).to_numpy().tolist()
    assert rows == [
        [0, "forward", "images", 0, 0.0, 0.1],
        [0, "receive-backward", None, None, 0.1, 0.2],
        [0, "forward", "images", 1, 0.2, 0.3],
        [0, "backward", "images", 0, 0.3, 0.5],
        [1, "forward", "images", 0, 0.0, 0.4],
    ]


@pytest.mark.parametrize("module", ["forward", "my images", "the backward", "images backward"])
def test_a_module_may_have_any_name(module: str) -> None:
    spans = (
        RankSpan(0, Span(None, "load"), 0.0, 0.1),
        RankSpan(0, Span(module, "forward"), 0.1, 0.3),
        RankSpan(0, Span(module, "gather"), 0.3, 0.4),
        RankSpan(0, Span(module, "backward"), 0.4, 1.0),
    )
    prediction = SharedPrediction("made up", 1.0, 1.0, (1.0,), 1.0, {}, spans)
    phases = prediction.phases()
    assert phases[module, "forward"] == pytest.approx(0.2)
    assert phases[module, "backward"] == pytest.approx(0.6)
    assert phases["", "communication"] == pytest.approx(0.1)
    assert phases["", "data"] == pytest.approx(0.1)
    table = predicted_steps(prediction)
    assert [name for name in table["module"] if isinstance(name, str)] == [module, module]
    assert list(table["name"]) == ["load", "forward", "gather", "backward"]
