"""Cases as rows of a table: one test runs all of them, and each that fails is told by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
from ruamel.yaml import YAML

Row = TypeVar("Row")


def table(file: Path) -> dict[str, Any]:
    """Read the tables of a file; a name that two rows have is refused."""
    return dict(YAML(typ="safe", pure=True).load(file))


def each(
    subtests: pytest.Subtests, rows: Mapping[str, Row], check: Callable[[Row], object]
) -> None:
    """Check every row on its own."""
    assert rows
    for name, row in rows.items():
        with subtests.test(name):
            check(row)
