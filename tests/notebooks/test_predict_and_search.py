"""The notebook from a Hugging Face config to a chosen layout, from top to bottom."""

import re
from pathlib import Path
from typing import Any

import pytest

from make.site.check import external_references
from tests.notebooks.headless import executed

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "06_predict_and_search.ipynb"


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str, str]:
    return executed(NOTEBOOK, tmp_path_factory.mktemp("predict_and_search"))


def test_the_page_needs_no_network(searched: tuple[Any, str, str]) -> None:
    assert external_references(searched[1]) == []


def test_the_best_beats_the_guess(searched: tuple[Any, str, str]) -> None:
    told = searched[2]
    guess = re.search(r"([\d.]+) s per step", told)
    best = re.search(r"on \d+\s+of\s+256\s+GPUs\s+takes\s+([\d.]+) s per step", told)
    assert guess is not None
    assert best is not None
    assert float(best[1]) < float(guess[1])


def test_its_charts_are_pictures(searched: tuple[Any, str, str]) -> None:
    drawn = [
        cell.source
        for cell in searched[0].cells
        for output in cell.get("outputs", [])
        if "image/svg+xml" in output.get("data", {})
    ]
    assert [source.split("(")[0].split(".")[-1] for source in drawn] == [
        "memory_bars",
        "step_parts",
    ]


def test_files_come_out(searched: tuple[Any, str, str]) -> None:
    assert "MegatronMIMOParallelismConfig(" in searched[2]
    assert "#SBATCH --nodes=" in searched[2]
