"""The notebook that plans a layout, from top to bottom."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest

from mimokit_widgets.notebooks.execute import execute
from mimokit_widgets.notebooks.page import external_references
from mimokit_widgets.notebooks.terminal import Terminal

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "00_plan_a_layout.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """Execute a copy; return the notebook and its page."""
    folder = tmp_path_factory.mktemp("plan_a_layout")
    copy = Path(shutil.copy(NOTEBOOK, folder))
    told = io.StringIO()
    assert execute(copy, folder / "out", Terminal(told)) == 0, told.getvalue()
    page = (folder / "out" / NOTEBOOK.with_suffix(".html").name).read_text()
    return nbformat.read(folder / "out" / NOTEBOOK.name, 4), page


def _text(notebook: Any) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs
    )


def test_it_compares_three_layouts_and_names_the_best(executed: tuple[Any, str]) -> None:
    told = _text(executed[0])
    rows = {
        line.split()[0]: line.split()[1:]
        for line in told.splitlines()
        if line.startswith(("homogeneous ", "colocated ", "heterogeneous "))
    }
    assert set(rows) == {"homogeneous", "colocated", "heterogeneous"}
    per_gpu = {name: int(cells[-1]) for name, cells in rows.items()}
    best = max(per_gpu, key=lambda name: per_gpu[name])
    assert best == "colocated"  # what the text below the table says
    assert f"{best}\ntorchrun --nnodes 8" in told
    assert "llava_on_64.yaml" in told


def test_its_page_shows_the_layouts_without_kernel_and_network(executed: tuple[Any, str]) -> None:
    page = executed[1]
    assert external_references(page) == []
    for mode in ("colocated", "heterogeneous"):
        assert f"{mode} on 64 ranks" in page
