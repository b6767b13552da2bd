"""The notebook from a Hugging Face config to a chosen layout, from top to bottom."""

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

pytestmark = pytest.mark.timeout(600)

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "06_predict_and_search.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str, str]:
    """Execute the notebook; return it, its page and what was told."""
    out = tmp_path_factory.mktemp("predict_and_search")
    told = io.StringIO()
    assert execute(NOTEBOOK, out, Terminal(told)) == 0, told.getvalue()
    page = (out / f"{NOTEBOOK.stem}.html").read_text()
    return nbformat.read(out / NOTEBOOK.name, 4), page, told.getvalue()


def test_it_runs_and_the_page_needs_no_network(executed: tuple[Any, str, str]) -> None:
    notebook, page, _ = executed
    assert external_references(page) == []
    for cell in notebook.cells:
        assert all(output.output_type != "error" for output in cell.get("outputs", []))


def test_the_best_beats_the_guess(executed: tuple[Any, str, str]) -> None:
    told = executed[2]
    guess = re.search(r"([\d.]+) s per step", told)
    best = re.search(r"on \d+ of 256\s+GPUs takes ([\d.]+) s per step", told)
    assert guess is not None
    assert best is not None
    assert float(best[1]) < float(guess[1])


def test_its_charts_are_pictures(executed: tuple[Any, str, str]) -> None:
    drawn = [
        cell.source
        for cell in executed[0].cells
        for output in cell.get("outputs", [])
        if "image/svg+xml" in output.get("data", {})
    ]
    assert [source.split("(")[0].split(".")[-1] for source in drawn] == [
        "memory_bars",
        "step_parts",
        "pareto",
    ]


def test_files_come_out(executed: tuple[Any, str, str]) -> None:
    assert "MegatronMIMOParallelismConfig(" in executed[2]
    assert "#SBATCH --nodes=" in executed[2]
