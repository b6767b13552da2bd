"""Cases as rows of a table: one test runs all of them, and each that fails is told by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML


def table(file: Path) -> dict[str, Any]:
    """Read the tables of a file; a name that two rows have is refused."""
    return dict(YAML(typ="safe", pure=True).load(file))


def each(
    subtests: pytest.Subtests, rows: Mapping[str, Sequence[Any]], check: Callable[..., object]
) -> None:
    """Give the values of every row to a check."""
    assert rows
    for name, row in rows.items():
        with subtests.test(name):
            check(*row)
