"""The notebook that plans a layout, from top to bottom."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from make.site.check import external_references
from tests.notebooks.headless import executed, outputs_of

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "00_plan_a_layout.ipynb"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    folder = tmp_path_factory.mktemp("plan_a_layout")
    return executed(Path(shutil.copy(NOTEBOOK, folder)), folder / "out")[:2]


def _text(notebook: Any) -> str:
    return "\n".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "")
        for output in outputs_of(notebook)
    )


def _figures(told: str, pattern: str) -> tuple[float, ...]:
    found = re.search(pattern, re.sub(r"\s+", " ", told))
    assert found, pattern
    return tuple(map(float, found.groups()))


def test_it_compares_the_best_of_three_modes_and_saves_the_fastest(
    planned: tuple[Any, str],
) -> None:
    told = _text(planned[0])
    rows: dict[str, list[float]] = {}
    for line in told.splitlines():
        if re.match(r"(homogeneous|colocated|heterogeneous) +\d", line):
            mode, *cells = line.split()
            rows.setdefault(mode, [float(cell) for cell in cells if cell != "\\"])
    assert set(rows) == {"homogeneous", "colocated", "heterogeneous"}
    for seconds, low, high, *_ in rows.values():
        assert low < seconds < high
    best = min(rows, key=lambda mode: rows[mode][0])
    assert f"The {best} layout is saved as runs/video_on_80.yaml.\ntorchrun --nnodes 10" in told
    assert "video_on_80.yaml" in told.rpartition("torchrun")[2]


def test_its_conclusions_are_computed_and_their_directions_hold(planned: tuple[Any, str]) -> None:
    told = planned[1]
    parameters, step = _figures(told, r"has (\d+)% of the parameters, but takes (\d+)% of the step")
    assert parameters < step
    shared, one = _figures(
        told, r"takes (\d+)% longer on shared ranks, and (\d+)% longer with one size for all"
    )
    assert 12 < shared < one  # beyond what predictions confuse
    adds, apart = _figures(told, r"adds ([\d.]+) s to each step; on .* adds ([\d.]+) s\.")
    assert adds > 10 * apart
    assert "num_attention_heads is 25, which tensor_parallel 8 does not divide" in told
    gain, longer = _figures(told, r"would gain ([\d.]+)%, which is a tie.* take (\d+)% longer")
    assert gain <= 3 < longer


def test_the_map_has_cells_of_every_kind(planned: tuple[Any, str]) -> None:
    """The text below it counts them; a map of one colour would teach nothing."""
    enough, cells = _figures(planned[1], r"is enough</strong> in (\d+) of (\d+) cells")
    pays, least, most = _figures(planned[1], r"pay</strong> in (\d+) cells: .*? (\d+)% to (\d+)%")
    (none,) = _figures(planned[1], r"fits in no layout</strong> in (\d+) cells, all of Intern")
    assert enough + pays + none == cells
    assert min(enough, pays, none) > 0
    assert 3 <= least < 12 < most
    (picture,) = _map_of(planned[0])
    assert {"tie", "no other fits"} <= set(re.findall(r">([^<]+)</text>", picture))


def test_the_readme_says_what_the_map_says(planned: tuple[Any, str]) -> None:
    readme = (NOTEBOOK.parents[1] / "README.md").read_text()
    told = planned[1]
    least, most = _figures(told, r"for all takes (\d+)% to (\d+)% longer")
    assert f"takes {least:.0f} to {most:.0f} % longer with one of 4.4 billion" in readme
    encoder, images = re.search(r"longer, most with (\S+), \S+ B and (\d+) images", told).groups()
    assert (encoder, f"videos of {images} frames" in readme) == ("EVA-CLIP-E", True)
    (layouts,) = re.findall(r"([\d,]+) layouts in", _text(planned[0]))
    assert f"the best of {layouts} layouts" in readme
    (picture,) = _map_of(planned[0])
    names = [label for label in re.findall(r">([^<]+)</text>", picture) if label.endswith(" B")]
    ahead = re.findall(r">(tie|no other fits|\+\d+%)</text>", picture)
    rows = dict(zip(names, zip(*[iter(ahead)] * 4, strict=True), strict=True))
    assert rows["CLIP ViT-L, 0.3 B"] == ("tie",) * 4  # "is as fast with an encoder of 0.3 billion"
    assert rows["ViT-bigG, 1.8 B"][0] == "tie"  # it pays from four images on
    assert "tie" not in rows["ViT-bigG, 1.8 B"][1:]
    assert rows["InternViT-6B, 5.5 B"] == ("no other fits",) * 4


def _map_of(notebook: Any) -> list[str]:
    return [
        output["data"]["image/svg+xml"]
        for output in outputs_of(notebook)
        if "Map of the best mode" in output.get("data", {}).get("text/plain", "")
    ]


def test_each_stage_of_the_story_has_a_planner_of_its_layout(planned: tuple[Any, str]) -> None:
    planners = [cell for cell in planned[0].cells if "LayoutPlanner(" in cell.source]
    shown = [
        "".join(output.get("data", {}).get("text/html", "") for output in cell.outputs)
        for cell in planners
    ]
    for mode, picture in zip(("homogeneous", "colocated", "heterogeneous"), shown, strict=False):
        assert f"{mode} on 80 ranks" in picture


def test_its_page_shows_the_layouts_without_kernel_and_network(planned: tuple[Any, str]) -> None:
    page = planned[1]
    assert external_references(page) == []
    for mode in ("homogeneous", "colocated", "heterogeneous"):
        assert f"{mode} on 80 ranks" in page
