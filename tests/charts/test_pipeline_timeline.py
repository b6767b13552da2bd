from typing import Any

import pytest

from mimokit import charts
from mimokit.charts import _palette, _renderer
from mimokit.planning.report.rows import MODULE_HUES
from mimokit.planning.schedule import Timeline, plan_schedule, simulate, stage_graph, zero_bubble
from mimokit.units import counted
from tests.charts.pictures import faults


def timeline(microbatches: int = 6, stages: int = 2) -> Timeline:
    graph = stage_graph(
        {"images": ["language"], "audio": ["language"], "language": []},
        {"images": 1, "audio": 1, "language": stages},
    )
    schedule = plan_schedule(graph, microbatches, frozen={"audio"})
    return simulate(schedule, [0.5, 0.2] + [1] * stages, [1, 0.4] + [2] * stages, 0.1)


def rows(chart: Any) -> list[dict[str, Any]]:
    (found,) = chart.to_dict()["datasets"].values()
    return list(found)


def apart() -> Timeline:
    """Return gradients of weights computed apart, of modules that have all hues."""
    names = [f"encoder {number}" for number in range(len(MODULE_HUES) - 1)]
    topology = {**{name: ["language"] for name in names}, "language": []}
    graph = stage_graph(topology, dict.fromkeys(topology, 1))
    return simulate(plan_schedule(graph, 4, zero_bubble))


def test_numbers_are_read_on_every_hue_and_kind_of_pass() -> None:
    made = apart()
    chart = charts.pipeline_timeline(made)
    keys = {row["key"] for row in rows(chart)}
    assert len(keys) == 3 * len(MODULE_HUES)
    assert faults(_renderer.bundle_of(chart)["image/svg+xml"]) == []


@pytest.mark.parametrize(("microbatches", "stages"), [(1, 1), (6, 2), (64, 4), (600, 16)])
def test_is_a_valid_spec_and_a_picture(microbatches: int, stages: int) -> None:
    bundle = _renderer.bundle_of(charts.pipeline_timeline(timeline(microbatches, stages), "ms"))
    assert faults(bundle["image/svg+xml"]) == []
    assert bundle["text/plain"] == (
        f"<chart: Timeline of {stages + 2} pipeline stages and "
        f"{counted(microbatches, 'micro-batch')}>"
    )


def test_every_computation_is_a_bar() -> None:
    made = timeline()
    found = rows(charts.pipeline_timeline(made))
    assert len(found) == 6 * 7  # a frozen encoder has no backward
    assert {row["stage"] for row in found} == {"images 0", "audio 0", "language 0", "language 1"}
    assert max(row["stop"] for row in found) == made.makespan
    on_the_path = [row for row in found if row["critical"]]
    expected = [i for i in made.critical_path() if i.action.edge is None]
    assert len(on_the_path) == len(expected) > 6


def test_long_pipelines_are_cut_off() -> None:
    chart = charts.pipeline_timeline(timeline(600, 16))
    assert len(rows(chart)) == 3000
    assert "shown" in chart.to_dict()["title"]["subtitle"]
    assert "shown" not in charts.pipeline_timeline(timeline()).to_dict()["title"]["subtitle"]


def test_modules_keep_their_colours() -> None:
    spec = charts.pipeline_timeline(timeline()).to_dict()
    scale = spec["layer"][0]["encoding"]["color"]["scale"]
    shades = dict(zip(scale["domain"], scale["range"], strict=True))
    hue = _palette.module_colors(["images", "audio", "language"])["language"]
    assert shades["language backward"] == hue
    assert "audio backward" not in shades
