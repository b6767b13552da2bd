"""The Pareto chart: a valid picture whose points carry their layouts."""

from __future__ import annotations

import pytest

from mimokit import charts
from mimokit.charts import _renderer
from mimokit.layout_search import SearchResult, search
from mimokit.prediction import Workload
from tests.charts.pictures import faults


@pytest.fixture(scope="module")
def result() -> SearchResult:
    return search("llava-1.5-7b", gpus=8, workload=Workload(4096, 16))


def test_it_is_a_picture(result: SearchResult) -> None:
    bundle = _renderer.bundle_of(charts.pareto(result))
    assert faults(bundle["image/svg+xml"]) == []
    assert f"{len(result.pareto)} layouts of llava-1.5-7b" in bundle["text/plain"]


def test_points_carry_their_layouts(result: SearchResult) -> None:
    from mimokit.charts._pareto import PICK

    spec = charts.pareto(result).to_dict()
    circles = next(layer for layer in spec["layer"] if layer["mark"]["type"] == "circle")
    values = spec["datasets"][circles["data"]["name"]]
    assert len(values) == len(result.pareto) > 3
    for value in values:
        one = result.pareto[value["index"]]
        assert f"{value['mode']}: {value['layout']}" == str(one.layout)
        assert value["gpus"] == one.layout.gpus
        assert value["seconds"] == pytest.approx(one.seconds)
        assert value["memory"] == pytest.approx(one.peak_memory / 2**30)
    assert [one["name"] for one in spec["params"]] == [PICK]
