"""Charts of predictions: valid, and with the numbers that were predicted."""

from typing import Any

import pytest

from mimokit import charts
from mimokit.architecture import MultimodalModel, load_model
from mimokit.charts import _palette, _renderer
from mimokit.config.runtime import DeploymentMode
from mimokit.config.sizes import ParallelSizes
from mimokit.prediction import Layout, Prediction, Workload, predict
from tests.charts.pictures import faults

GIB = 2**30


def prediction(mode: DeploymentMode, encoder: ParallelSizes) -> Prediction:
    model = load_model("llava-1.5-7b")
    assert isinstance(model, MultimodalModel)
    layout = Layout(mode, {"images": encoder, model.language.name: ParallelSizes(2, 2, data=2)})
    return predict(model, layout, Workload(2048, 64))


COLOCATED = prediction("colocated", ParallelSizes(data=8))
APART = prediction("heterogeneous", ParallelSizes(data=2))


def values(chart: Any, layer: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chart.layer[layer].data.values
    return found


@pytest.mark.parametrize(
    "chart",
    [
        charts.memory_bars(COLOCATED),
        charts.memory_bars(APART),
        charts.step_parts([COLOCATED, APART]),
    ],
    ids=["memory", "memory apart", "steps"],
)
def test_is_a_valid_spec_and_a_picture(chart: Any) -> None:
    bundle = _renderer.bundle_of(chart)
    assert faults(bundle["image/svg+xml"]) == []
    assert "no description" not in bundle["text/plain"]


def test_modules_on_shared_ranks_are_held_together_against_the_limit() -> None:
    rows = values(charts.memory_bars(COLOCATED), 0)
    together = sum(row["gib"] for row in rows if row["bar"] == "together")
    assert together == pytest.approx(COLOCATED.peak_memory / GIB)
    assert values(charts.memory_bars(COLOCATED), 1)[0]["gib"] == COLOCATED.capacity / GIB


def test_modules_on_their_own_ranks_have_a_bar_each() -> None:
    rows = values(charts.memory_bars(APART), 0)
    assert {row["bar"] for row in rows} == set(APART.lines)


def test_bars_of_a_step_are_as_long_as_the_step() -> None:
    chart = charts.step_parts([COLOCATED, APART])
    for one in (COLOCATED, APART):
        length = sum(row["ms"] for row in values(chart, 0) if row["layout"] == str(one.layout))
        assert length == pytest.approx(1000 * one.seconds)


def test_every_part_has_a_colour() -> None:
    assert set(COLOCATED.parts) == set(_palette.STEP_COLORS)
    assert {part for parts in COLOCATED.memory.values() for part in parts} <= set(
        _palette.MEMORY_COLORS
    )


def test_no_prediction_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least one prediction"):
        charts.step_parts([])
