"""Every chart is a valid spec and a picture, on plans and tables of several sizes."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from mimokit import charts
from mimokit.analysis import RunDifference, samples_to_evaluations, samples_to_steps
from mimokit.charts import _palette, _renderer
from mimokit.experiment import VerificationReport
from mimokit.workload import named_mix
from tests.charts.fakes import samples
from tests.charts.pictures import faults
from tests.charts.plans import weight_plan
from tests.charts.readable import Color, contrast
from tests.experiment.culprit.reports import CULPRIT
from tests.rows import rows

STEPS = samples_to_steps(samples())
EVALUATIONS = samples_to_evaluations(samples())
DIFFERENCE = RunDifference(
    "slow", "quick", 0.08, "step", pd.Series({"forward": -0.01, "waiting": 0.09}),
    pd.DataFrame({"forward": [-0.02, 0.0], "waiting": [0.1, 0.08]}, index=[0, 1]), (),
)  # fmt: skip
REPORT = VerificationReport(
    name="digits", data="strips", layout={"images": "DP 8"}, tolerance=1e-5,
    losses=(2.0, 1.5), oracle_losses=(2.0, 1.5000001),
    gradient_differences=({"images": 2e-6}, {"images": 3e-5}),
    weight_differences=({"images": 0.0}, {"images": float("nan")}), worst_parameters={},
)  # fmt: skip
MAKERS: dict[str, Callable[[], Any]] = {
    "sample_histograms": lambda: charts.sample_histograms(named_mix("videos")),
    "loss": lambda: charts.loss(STEPS),
    "loss after one step": lambda: charts.loss(STEPS[STEPS["iteration"] == 0]),
    "loss with evaluations": lambda: charts.loss(STEPS, EVALUATIONS),
    "proof": lambda: charts.proof(REPORT),
    "waterfall": lambda: charts.waterfall(DIFFERENCE),
    "waterfall of other ranks": lambda: charts.waterfall(replace(DIFFERENCE, ranks=pd.DataFrame())),
    "seams": lambda: charts.seams(CULPRIT.rows()),
    "tensor_difference": lambda: charts.tensor_difference(
        CULPRIT.divergence.cells(), CULPRIT.divergence.borders()
    ),
    "weight_map": lambda: charts.weight_map(weight_plan("llama", 2, 2)),
    "weight_map of a tower": lambda: charts.weight_map(weight_plan("clip", 8)),
    "weight_map of 160 ranks": lambda: charts.weight_map(weight_plan("70b", 8, 20)),
}


@rows("name", *MAKERS)
def test_is_a_valid_spec_and_a_picture(name: str) -> None:
    bundle = _renderer.bundle_of(MAKERS[name]())  # to_dict validates against the schema
    assert faults(bundle["image/svg+xml"]) == []
    assert bundle["text/plain"].startswith("<chart: ")
    assert "no description" not in bundle["text/plain"]


def test_the_picture_of_a_step_has_layers_passes_and_ranks_and_marks_the_first() -> None:
    spec = charts.seams(CULPRIT.rows()).to_dict()
    data, (picture, differences) = spec["datasets"], spec["vconcat"]
    passes = {panel["title"]["text"]: panel["layer"] for panel in picture["hconcat"]}
    assert list(passes) == ["forward", "backward"]
    cells = {
        name: {(cell["layer"], cell["rank"]): cell for cell in data[layers[0]["data"]["name"]]}
        for name, layers in passes.items()
    }
    every = {(f"{module} · layer {n}", rank) for module in ("images", "language_module")
             for n in range(4) for rank in (0, 1)}  # fmt: skip
    assert cells["forward"].keys() == cells["backward"].keys() == every
    framed = data[passes["backward"][1]["data"]["name"]]
    assert [(cell["layer"], cell["rank"]) for cell in framed] == [("images · layer 2", 1)]
    assert {cell["seen"] for cell in cells["forward"].values()} == {"before"}
    behind = {place for place, cell in cells["backward"].items() if cell["seen"] == "behind"}
    assert behind == {place for place in every if place[0] > "images · layer 2"}
    fields = [layer["encoding"]["y"]["field"] for layer in differences["layer"]]
    assert fields == ["allowed", "spread", "difference", "difference"]


def test_a_proof_that_fails_says_so_and_draws_what_is_a_number() -> None:
    spec = charts.proof(REPORT).to_dict()
    assert "does NOT compute" in spec["title"]["subtitle"]
    assert spec["title"]["subtitle"].endswith("weights nan")
    points = spec["datasets"][spec["layer"][0]["data"]["name"]]
    assert [point["difference"] for point in points if point["kind"] == "gradients"] == [
        "2.0e-06",
        "3.0e-05",
    ]
    assert [point["step"] for point in points if point["kind"] == "weights"] == [1]


def test_spec_is_one_of_vega_lite_5_and_holds_no_other_address() -> None:
    bundle = _renderer.bundle_of(charts.loss(STEPS))
    spec = bundle[_renderer.MIME_TYPE]
    assert spec["$schema"] == "https://vega.github.io/schema/vega-lite/v5.6.1.json"
    rest = json.dumps({name: value for name, value in spec.items() if name != "$schema"})
    assert "http" not in rest


def test_a_chart_shows_itself_with_spec_and_picture() -> None:
    assert set(charts.loss(STEPS)._repr_mimebundle_()) == {
        _renderer.MIME_TYPE,
        "image/svg+xml",
        "text/plain",
    }


def test_a_character_that_xml_cannot_hold_is_replaced() -> None:
    spec = charts.loss(STEPS).to_dict()
    spec["title"] = {"text": ["col\x1b", "\ufffe", "\0", "fine\t\N{GRINNING FACE}"]}
    assert _renderer.in_xml(spec["title"]) == {
        "text": ["col\ufffd", "\ufffd", "\ufffd", "fine\t\N{GRINNING FACE}"]
    }
    assert "col\ufffd" in str(_renderer.svg(spec))  # aborted the process, and this test with it


def test_without_vl_convert_the_spec_still_goes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_renderer.importlib.util, "find_spec", lambda name: None)
    assert set(_renderer.bundle_of(charts.loss(STEPS))) == {_renderer.MIME_TYPE, "text/plain"}


def test_weight_map_has_what_every_rank_holds() -> None:
    for family, sizes in (("gpt2", (2, 1)), ("llama", (4, 2)), ("qwen2", (4, 1))):
        found = weight_plan(family, *sizes)
        spec = charts.weight_map(found).to_dict()
        panels = spec["vconcat"][0]["hconcat"]
        for panel, name in zip(panels, ("layers", "query_heads", "query_groups"), strict=False):
            rows = _rows_of(panel, spec)
            spans = {row["rank"]: (row["start"], row["stop"]) for row in rows}
            assert spans == {at: getattr(one, name) for at, one in enumerate(found.ranks)}
        bands = _values(spec, panel=1)
        areas: dict[tuple[str, int], float] = {}
        for band in bands:
            key = band["tensor"], int(band["left"])
            width, height = band["right"] - band["left"], band["bottom"] - band["top"]
            areas[key] = areas.get(key, 0.0) + width * height
        # Every tensor is whole: a matrix 26, a vector 10 of 32 pixels high, 0.96 of a stage wide.
        assert {round(area / 0.96 * 32) for area in areas.values()} == {26, 10}
        held = {(band["tensor"], band["ranks"]) for band in bands}
        assert ("lm_head.weight", "7") in held or family != "llama"
        assert ("model.norm.weight", "0–3") in held or family != "qwen2"


def test_long_runs_stay_small() -> None:
    long = samples_to_steps(samples(iterations=1500, ranks=2))
    assert len(_values(charts.stragglers(long).to_dict())) <= 2 * 101


def test_a_table_without_the_column_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"^The chart loss needs a table with the column loss\.$"):
        charts.loss(pd.DataFrame({"iteration": [1]}))


def test_module_colours_follow_names_and_repeat_only_after_all_are_used() -> None:
    colors = _palette.module_colors(["a", "b", "c", "d", "e", "f"])
    assert len(set(colors.values())) == 6
    two = _palette.module_colors(["images", "language_module"])
    for added in (f"encoder_{number}" for number in range(12)):
        three = _palette.module_colors(["images", added, "language_module"])
        assert three.items() >= two.items()
        assert len(set(three.values())) == 3


def test_a_colour_has_one_meaning_and_can_be_written_on() -> None:
    modules = set(_palette.MODULE_HUES)
    for others in (_palette.STEP_COLORS, _palette.MEMORY_COLORS, _palette.MODE_COLORS):
        assert modules.isdisjoint(others.values())
    for hue in modules:
        for share in (0, 0.38, 0.5):  # both shades of a module, on dark and on light pages
            color = _palette.tint(hue, share)
            assert contrast(_color(color), _color(_palette.ink_on(color))) >= 4.5, (hue, share)


def _color(text: str) -> Color:
    red, green, blue = (float(int(text[start : start + 2], 16)) for start in (1, 3, 5))
    return red, green, blue


def test_a_renderer_that_the_user_chose_is_kept() -> None:
    import altair as alt

    with alt.renderers.enable("json"):
        _renderer.enable()
        assert alt.renderers.active == "json"


def test_grammars_of_addresses_are_built_for_the_first_that_is_checked():
    checks = (
        "from mimokit import charts; charts.loss; import jsonschema, sys; "
        "built, addresses = 'lark' in sys.modules, jsonschema.FormatChecker(); "
        "print(built, *(addresses.conforms(text, 'iri') for text in ('u:\u00e4', ' ')))"
    )
    command = [sys.executable, "-c", checks]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert found.split() == ["False", "True", "False"]


def _values(spec: dict[str, Any], panel: int | None = None) -> list[dict[str, Any]]:
    return _rows_of(spec if panel is None else spec["vconcat"][panel], spec)


def _rows_of(part: dict[str, Any], spec: dict[str, Any]) -> list[dict[str, Any]]:
    while "data" not in part:
        part = part["layer"][0]
    return list(spec["datasets"][part["data"]["name"]])
