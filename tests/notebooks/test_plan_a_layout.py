"""The notebook that plans a layout, from top to bottom."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from mimokit_widgets.notebooks.page import external_references
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


def test_it_compares_three_layouts_and_names_the_best(planned: tuple[Any, str]) -> None:
    told = _text(planned[0])
    rows = {
        line.split()[0]: line.split()[1:]
        for line in told.splitlines()
        if line.startswith(("homogeneous ", "colocated ", "heterogeneous "))
        and line.split()[-1].isdigit()
    }
    assert set(rows) == {"homogeneous", "colocated", "heterogeneous"}
    per_gpu = {name: int(cells[-1]) for name, cells in rows.items()}
    best = max(per_gpu, key=lambda name: per_gpu[name])
    assert f"The {best} layout is saved as runs/llava_on_64.yaml.\ntorchrun --nnodes 8" in told


def test_its_conclusions_are_computed_and_their_directions_hold(planned: tuple[Any, str]) -> None:
    """The text says that colocated is faster per GPU than both others, and why."""
    page = re.sub(r"\s+", " ", planned[1])
    share = re.search(r"share of the step falls from (\d+)% to (\d+)%", page)
    assert share is not None
    assert int(share[1]) > int(share[2])
    gain = re.search(r"Each GPU trains on (-?\d+)% more tokens per second", page)
    loss = re.search(r"each GPU trains on (-?\d+)% fewer tokens per second", page)
    assert int(gain[1]) > 0
    assert int(loss[1]) > 0
    parameters = re.search(r"has (\d+)% of the parameters, but takes (\d+)% of the step", page)
    assert int(parameters[1]) < int(parameters[2]) == int(share[1])
    reserved = re.search(
        r"(\d+)% of the work of the colocated step, but 32 of 64 GPUs, or (\d+)%", page
    )
    assert int(reserved[1]) < int(reserved[2])
    assert re.search(r"Of [\d,]+ layouts the best is .*: the colocated one above", page)


def test_each_stage_of_the_story_has_a_planner_of_its_layout(planned: tuple[Any, str]) -> None:
    planners = [cell for cell in planned[0].cells if "LayoutPlanner(" in cell.source]
    shown = [
        "".join(output.get("data", {}).get("text/html", "") for output in cell.outputs)
        for cell in planners
    ]
    for mode, picture in zip(("homogeneous", "colocated", "heterogeneous"), shown, strict=False):
        assert f"{mode} on 64 ranks" in picture


def test_its_page_shows_the_layouts_without_kernel_and_network(planned: tuple[Any, str]) -> None:
    page = planned[1]
    assert external_references(page) == []
    for mode in ("homogeneous", "colocated", "heterogeneous"):
        assert f"{mode} on 64 ranks" in page
