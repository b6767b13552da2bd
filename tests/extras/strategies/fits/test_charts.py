"""Charts of fits under strategies."""

from collections.abc import Callable
from typing import Any

import pytest

from mimokit import charts
from mimokit.analysis import FitFolder, bytes_of_fits, drift_of_fits, validation_of_fits
from mimokit.charts import _renderer
from mimokit.prediction import StrategyTimeline, strategy_timeline
from mimokit_widgets import TimelineView
from tests.charts.pictures import faults
from tests.extras.strategies.fits.fake_fits import (
    COMPUTE_SECONDS,
    NETWORK,
    NODES,
    RULES,
    fake_fits,
    plan,
)
from tests.rows import rows

STEPS = 20
Fits = dict[str, FitFolder]


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> Fits:
    return fake_fits(tmp_path_factory.mktemp("fits"), steps=STEPS)


def timeline(name: str, steps: int = STEPS) -> StrategyTimeline:
    return strategy_timeline(plan(name), NETWORK, COMPUTE_SECONDS, steps)


MAKERS: dict[str, Callable[[Fits], Any]] = {
    "losses over steps": lambda fits: charts.validation_losses(validation_of_fits(fits)),
    "losses over bytes": lambda fits: charts.validation_losses(
        validation_of_fits(fits), "sent_bytes"
    ),
    "losses over time": lambda fits: charts.validation_losses(
        validation_of_fits(fits), "predicted_seconds"
    ),
    "bytes": lambda fits: charts.step_bytes(bytes_of_fits(fits)),
    "drift": lambda fits: charts.drift(drift_of_fits(fits)),
}


@rows("name", *MAKERS)
def test_is_a_valid_spec_and_a_picture(fits: Fits, name: str) -> None:
    bundle = _renderer.bundle_of(MAKERS[name](fits))
    assert faults(bundle["image/svg+xml"]) == []
    assert "no description" not in bundle["text/plain"]


def rows(chart: Any) -> list[dict[str, Any]]:
    (first, *_) = chart.to_dict()["datasets"].values()
    return list(first)


def test_lines_of_more_fits_than_hues_differ_in_their_dashes(fits: Fits) -> None:
    spec = charts.validation_losses(validation_of_fits(fits)).to_dict()
    encoding = spec["layer"][0]["encoding"]
    hues, dashes = (encoding[channel]["scale"] for channel in ("color", "strokeDash"))
    assert hues["domain"] == dashes["domain"] == list(RULES)
    looks = {(hue, *dash) for hue, dash in zip(hues["range"], dashes["range"], strict=True)}
    assert len(looks) == len(RULES) > len(set(hues["range"]))


def test_over_bytes_begins_with_the_first_exchange(fits: Fits) -> None:
    table = validation_of_fits(fits)
    chart = charts.validation_losses(table, "sent_bytes")
    assert len(rows(chart)) == (table["sent_bytes"] > 0).sum() < len(table)
    assert chart.to_dict()["layer"][0]["encoding"]["x"]["scale"]["type"] == "log"


def test_predicted_times_need_a_network(fits: Fits) -> None:
    table = validation_of_fits(fits).drop(columns="predicted_seconds")
    with pytest.raises(ValueError, match="needs a table with the column predicted_seconds"):
        charts.validation_losses(table, "predicted_seconds")
    with pytest.raises(ValueError, match="'bytes' is unknown; choose one of step, sent_bytes"):
        charts.validation_losses(table, "bytes")  # type: ignore[arg-type]


def test_bars_are_the_largest_of_their_steps(fits: Fits) -> None:
    table = bytes_of_fits({name: fits[name] for name in ("SimpleReduce", "DiLoCo")})
    assert len(rows(charts.step_bytes(table))) == STEPS + 2
    longer = bytes_of_fits({"DiLoCo": fits["DiLoCo"]})
    longer["step"] *= 1000
    found = rows(charts.step_bytes(longer))
    assert [row["sent_bytes"] for row in found] == [longer["sent_bytes"].max()] * 2
    assert all(row["stop"] - row["first"] == 84 for row in found)


def test_a_timeline_has_all_the_time_of_all_nodes() -> None:
    made = timeline("DiLoCo")
    view = TimelineView(nodes={"DiLoCo": made, "SimpleReduce": timeline("SimpleReduce")})
    drawn = view._timeline
    assert drawn["unit"] == "s"
    assert [lane["name"] for lane in drawn["lanes"]] == [f"node {n}" for n in range(NODES)] * 2
    assert drawn["lanes"][0]["group"].startswith("DiLoCo: computes for ")
    keys = [key["name"] for key in drawn["keys"]]
    for word, activity in (("computing", "compute"), ("exchanging", "exchange")):
        spans = [span for span in drawn["spans"] if keys[span[1]] == word and span[0] < NODES]
        shown = sum(stop - start for _, _, start, stop, _ in spans)
        expected = sum(made.seconds(activity))  # type: ignore[arg-type]
        assert shown == pytest.approx(expected, rel=1e-5)
    assert "node 0" in view._in_html()
