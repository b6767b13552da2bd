"""The notebook itself, from top to bottom; only the training is cut short."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from make.site.check import external_references
from tests.notebooks.headless import executed
from tests.rows import rows

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
FIRST_LIGHT = NOTEBOOKS / "01_first_light.ipynb"
ITERATIONS = 8  # of which 5 are not measured


@rows("file", *sorted(NOTEBOOKS.glob("*.ipynb")))
def test_a_notebook_is_committed_without_outputs(file: Path) -> None:
    notebook = nbformat.read(file, 4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str, str]:
    folder = tmp_path_factory.mktemp("first_light")
    (folder / "configs").symlink_to(NOTEBOOKS.parent / "configs")
    (folder / "notebooks").mkdir()
    copy = folder / "notebooks" / FIRST_LIGHT.name
    nbformat.write(_shortened(nbformat.read(FIRST_LIGHT, 4)), copy)
    return executed(copy, folder / "out")


def _shortened(notebook: Any) -> Any:
    place = next(
        index
        for index, cell in enumerate(notebook.cells)
        if "config" in cell.metadata.get("tags", [])
    )
    change = (
        f"fewer = config.runtime.model_copy(update={{'num_iterations': {ITERATIONS}}})\n"
        "config = config.model_copy(update={'runtime': fewer})"
    )
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(change))
    return notebook


def test_it_runs_and_the_page_needs_no_network(trained: tuple[Any, str, str]) -> None:
    _, page, told = trained
    assert external_references(page) == []
    assert "Train, and watch" in told
    assert f"iteration {ITERATIONS} of {ITERATIONS}" in told


def test_the_picture_of_the_run_stays(trained: tuple[Any, str, str]) -> None:
    live = next(cell for cell in trained[0].cells if "LiveMonitor(run)" in cell.source)
    said = [output.get("data", {}).get("text/plain", "") for output in live.outputs]
    assert sum(f"Training finished. {ITERATIONS} iterations in " in each for each in said) == 1


def test_accuracy_and_chance_are_computed(trained: tuple[Any, str, str]) -> None:
    page = trained[1]
    assert re.search(r"Read without a single error:\s+\d+\.\d%", page)
    assert re.search(r"Guessing would reach:\s+1\.4%", page)


def test_the_layout_is_verified(trained: tuple[Any, str, str]) -> None:
    assert "computes what one process computes" in trained[1]
