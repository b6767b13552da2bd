"""Pages are short: a budget of words for each, and of 25 for a cell of the benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_OF_A_CELL = 25
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text()
TABLE = re.compile(r"^\|(.+)\|$", re.MULTILINE)


def long_cells(text: str) -> list[str]:
    """Return the cells of tables that have too many words."""
    cells = [cell for row in TABLE.findall(text) for cell in row.split("|")]
    return [cell for cell in cells if len(cell.split()) > MOST_OF_A_CELL]


def test_cells_of_the_benchmarks_are_short() -> None:
    assert long_cells(BENCHMARKS) == []


def test_a_long_cell_is_found() -> None:
    assert long_cells(f"| a | {'word ' * 26}|")
