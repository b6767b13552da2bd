"""Tables of measurements: read by name of column, refused in one sentence."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

Row = Mapping[str, str]


class DataError(ValueError):
    """A table that cannot be judged; one sentence says why."""


class SkippedRowError(ValueError):
    """A row that no description exists for; says why."""


def names(text: str) -> tuple[str, ...]:
    """Return the names of columns that a text lists."""
    return tuple(text.split())


def table(path: Path, columns: Sequence[str]) -> list[Row]:
    """Return the rows of a table; none if the file does not exist.

    Raises:
        DataError: a column is missing.
    """
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise DataError(f"{path.name}: column '{missing[0]}' is missing.")
        return list(reader)


MODELS = "models.csv"
"""Of a folder, if it has one: dimensions of models, by the names of the columns of the tables."""


def described(folder: Path) -> Mapping[str, Row]:
    """Return model -> its dimensions; empty where the folder does not describe models.

    Raises:
        DataError: the column of names is missing.
    """
    return {row["model"]: row for row in table(folder / MODELS, ("model",))}


def filled(row: Row, model: Row | None) -> Row:
    """Return a row with what it leaves empty taken from the description of its model."""
    said = {name: text for name, text in row.items() if (text or "").strip()}
    return {**dict.fromkeys(row, ""), **(model or {}), **said}


def whole(row: Row, name: str, default: int | None = None) -> int:
    """Return a whole number of a row.

    Raises:
        SkippedRowError: there is none, and no default.
    """
    text = (row.get(name) or "").strip()
    try:
        return int(float(text))
    except ValueError:
        if default is None:
            raise SkippedRowError(f"{name} is not given") from None
        return default


def number(row: Row, name: str) -> float | None:
    """Return a number of a row, None where there is none."""
    try:
        return float((row.get(name) or "").strip())
    except ValueError:
        return None
