"""The notebook itself, from top to bottom; only the training is cut short."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from mimokit_widgets.notebooks.execute import execute
from mimokit_widgets.notebooks.page import external_references
from mimokit_widgets.notebooks.terminal import Terminal

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
FIRST_LIGHT = NOTEBOOKS / "01_first_light.ipynb"
ITERATIONS = 12


@pytest.mark.parametrize("file", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda file: file.name)
def test_a_notebook_is_committed_without_outputs(file: Path) -> None:
    notebook = nbformat.read(file, 4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str, str]:
    """Execute a copy with fewer iterations; return the notebook, its page and what was told."""
    folder = tmp_path_factory.mktemp("first_light")
    (folder / "configs").symlink_to(NOTEBOOKS.parent / "configs")
    (folder / "notebooks").mkdir()
    copy = folder / "notebooks" / FIRST_LIGHT.name
    nbformat.write(_shortened(nbformat.read(FIRST_LIGHT, 4)), copy)
    told = io.StringIO()
    status = execute(copy, folder / "out", Terminal(told))
    assert status == 0, told.getvalue()
    notebook = nbformat.read(folder / "out" / FIRST_LIGHT.name, 4)
    return notebook, (folder / "out" / "01_first_light.html").read_text(), told.getvalue()


def _shortened(notebook: Any) -> Any:
    """Put a cell that shortens the training behind the one that loads the config."""
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


@pytest.mark.timeout(600)
def test_it_runs_and_the_page_needs_no_network(executed: tuple[Any, str, str]) -> None:
    notebook, page, told = executed
    assert external_references(page) == []
    assert "Train, and watch" in told
    assert f"iteration {ITERATIONS} of {ITERATIONS}" in told
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error"


def test_the_picture_of_the_run_stays(executed: tuple[Any, str, str]) -> None:
    live = next(cell for cell in executed[0].cells if "LiveMonitor(run)" in cell.source)
    pictures = [output for output in live.outputs if "image/svg+xml" in output.get("data", {})]
    assert len(pictures) == 1
    assert f"{ITERATIONS} iterations in " in pictures[0].data["text/plain"]


def test_accuracy_and_chance_are_computed(executed: tuple[Any, str, str]) -> None:
    page = executed[1]
    assert re.search(r"Read without a single error:\s+\d+\.\d%", page)
    assert re.search(r"Guessing would reach:\s+1\.4%", page)


def test_the_layout_is_verified(executed: tuple[Any, str, str]) -> None:
    assert "computes what one process computes" in executed[1]
