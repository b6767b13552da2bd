"""Reads one CSV table of a results folder: its whole rows, and what is wrong with the others."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mimokit.samples import EVALUATION_COLUMNS, MODULE_COLUMNS, STEP_COLUMNS, TEXT_COLUMNS

_TAIL = 1 << 16
"""Bytes that are read to find the start of the last row; longer rows are looked for further up."""


@dataclass(frozen=True)
class TableProblem:
    """Something wrong with a table."""

    sentence: str
    rows: int = 0


@dataclass(frozen=True)
class TableFile:
    """The rows of a table that can be used."""

    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    columns: tuple[str, ...] = ()
    problems: tuple[TableProblem, ...] = ()


class _UnreadableError(Exception):
    """Ends the reading of a file; the message is one sentence."""


def read_table(
    file: Path,
    needed: Sequence[str],
    keys: Sequence[str] = ("iteration",),
    texts: Collection[str] = TEXT_COLUMNS,
) -> TableFile:
    """Read a table and say what is wrong with it; nothing is raised.

    A row that does not end with a line break is half-written: its last number may be cut. Such a
    row, a row with text in a column of numbers that mimokit writes, and a row without a key are
    left out. Text in any other column becomes NaN.

    Args:
        needed: the columns whose absence is a problem.
    """
    problems: list[TableProblem] = []
    try:
        columns, source = _opened(file, problems)
        for name in needed:
            if name not in columns:
                problems.append(TableProblem(f"The file {file} has no column {name}."))
        if any(name not in columns for name in keys):
            return TableFile(columns=columns, problems=tuple(problems))
        table = _numbers(file, source, columns, _Kinds(needed, texts), problems)
        return TableFile(_with_keys(file, table, keys, problems), columns, tuple(problems))
    except _UnreadableError as error:
        return TableFile(problems=(*problems, TableProblem(str(error))))
    except OSError as error:
        sentence = f"The file {file} cannot be read ({error.strerror or error})."
        return TableFile(problems=(*problems, TableProblem(sentence)))


def cut_row(file: Path) -> TableProblem | None:
    """Return the problem of a file that ends in the middle of a row, looking at its end alone."""
    whole, size = _whole_bytes(file)
    if whole == size:
        return None
    return TableProblem(
        f"The file {file} ends in the middle of a row; the rows before it count.", 1
    )


Source = Path | io.BytesIO


def _opened(file: Path, problems: list[TableProblem]) -> tuple[tuple[str, ...], Source]:
    """Return the columns of a file, and what to read: the file, or its whole rows."""
    with file.open("rb") as opened:
        header = opened.readline()
    if not header.strip():
        raise _UnreadableError(f"The file {file} is empty and has not even a header.")
    try:
        names = next(csv.reader([header.decode("utf-8-sig")]))
    except (UnicodeDecodeError, csv.Error) as error:
        raise _UnreadableError(f"The file {file} is not a readable CSV table ({error}).") from None
    whole, _ = _whole_bytes(file)
    if whole == 0:
        raise _UnreadableError(f"The file {file} ends in the middle of its header.")
    cut = cut_row(file)
    if cut is None:
        return tuple(names), file
    problems.append(cut)
    return tuple(names), io.BytesIO(file.read_bytes()[:whole])


def _whole_bytes(file: Path) -> tuple[int, int]:
    """Return the bytes up to the last line break, and all bytes."""
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        stop = size
        while stop:
            start = max(0, stop - _TAIL)
            opened.seek(start)
            newline = opened.read(stop - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1, size
            stop = start
    return 0, size


@dataclass(frozen=True)
class _Kinds:
    """The columns that must be there, and those of text."""

    needed: Collection[str]
    texts: Collection[str]

    def is_known(self, column: str) -> bool:
        """Return whether mimokit writes a column of this name; others may hold text."""
        of_modules = any(column.endswith(f"_{name}") for name in MODULE_COLUMNS)
        return of_modules or column in (*STEP_COLUMNS, *EVALUATION_COLUMNS, *self.needed)


def _numbers(
    file: Path, source: Source, columns: Sequence[str], kinds: _Kinds, problems: list[TableProblem]
) -> pd.DataFrame:
    """Return the table; if a column of numbers holds text, read the file again, more slowly."""
    try:  # without dtypes: the reader takes twice as long with them as without
        table = pd.read_csv(source, low_memory=False)
    except UnicodeDecodeError as error:
        raise _UnreadableError(f"The file {file} is not a readable CSV table ({error}).") from None
    except ValueError:  # ParserError is one, too
        return _slowly(file, source, columns, kinds, problems)
    if all(kind.kind in "if" for name, kind in table.dtypes.items() if name not in kinds.texts):
        return table
    return _slowly(file, source, columns, kinds, problems)


def _slowly(
    file: Path, source: Source, columns: Sequence[str], kinds: _Kinds, problems: list[TableProblem]
) -> pd.DataFrame:
    if isinstance(source, Path):
        source = io.BytesIO(source.read_bytes())
    rows = sum(1 for line in source.getvalue().splitlines() if line.strip()) - 1
    source.seek(0)
    try:
        table = pd.read_csv(source, dtype=object, on_bad_lines="skip", low_memory=False)
    except ValueError as error:
        raise _UnreadableError(f"The file {file} is not a readable CSV table ({error}).") from None
    longer = rows - len(table)
    if longer > 0:
        sentence = f"The file {file} has rows with more cells than its header has columns."
        problems.append(TableProblem(sentence, longer))
    wrong = np.zeros(len(table), dtype=bool)
    for name in columns:
        if name not in kinds.texts:
            cells = table[name]
            table[name] = pd.to_numeric(cells, errors="coerce").astype(np.float64)
            bad = (table[name].isna() & cells.notna()).to_numpy()
            if not bad.any():
                continue
            row = int(bad.argmax())
            if not kinds.is_known(name):
                sentence = (
                    f"The file {file} has {cells.iloc[row]!r} in line {row + 2} of column {name}, "
                    "which mimokit does not know; what is not a number there is left out."
                )
                problems.append(TableProblem(sentence))
                continue
            sentence = (
                f"The file {file} has {cells.iloc[row]!r} in line {row + 2} where column "
                f"{name} needs a number."
            )
            problems.append(TableProblem(sentence, int((bad & ~wrong).sum())))
            wrong |= bad
    return table[~wrong]


def _with_keys(
    file: Path, table: pd.DataFrame, keys: Sequence[str], problems: list[TableProblem]
) -> pd.DataFrame:
    """Leave out the rows without a key, and store keys as whole numbers."""
    for name in keys:
        values = table[name].to_numpy()
        if values.dtype.kind == "i":
            continue
        good = np.isfinite(values) & (values == np.floor(values))
        if not good.all():
            line = int(np.argmin(good)) + 2
            sentence = f"The file {file} has no {name} in line {line}."
            problems.append(TableProblem(sentence, int((~good).sum())))
            table = table[good]
        table = table.assign(**{name: table[name].astype(np.int64)})
    return table


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as dicts."""
    return [{str(name): row[name] for name in row} for row in table.to_dict("records")]
