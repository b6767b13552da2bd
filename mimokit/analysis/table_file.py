"""Reads one CSV table of a results folder: its whole rows, and what is wrong with the others."""

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
    """Something wrong with a table, and the number of rows that were left out for it."""

    sentence: str
    rows: int = 0


@dataclass(frozen=True)
class TableFile:
    """The rows of a table that can be used; none if the file cannot be read."""

    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    columns: tuple[str, ...] = ()
    problems: tuple[TableProblem, ...] = ()


Source = Path | io.BytesIO


class _UnreadableError(Exception):
    """Ends the reading of a file; the message is a sentence without its subject, the file."""


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
    """
    reader = _Reader(file, needed, texts)
    try:
        columns, source = reader.opened()
        for name in needed:
            if name not in columns:
                reader.note(f"has no column {name}.")
        if any(name not in columns for name in keys):
            return TableFile(columns=columns, problems=tuple(reader.problems))
        table = reader.with_keys(reader.numbers(source, columns), keys)
        return TableFile(table, columns, tuple(reader.problems))
    except _UnreadableError as error:
        reader.note(str(error))
    except OSError as error:
        reader.note(f"cannot be read ({error.strerror or error}).")
    return TableFile(problems=tuple(reader.problems))


def cut_row(file: Path) -> TableProblem | None:
    """Return the problem of a file that ends in the middle of a row, looking at its end alone."""
    whole, size = _whole_bytes(file)
    if whole == size:
        return None
    return TableProblem(
        f"The file {file} ends in the middle of a row; the rows before it count.", 1
    )


def _whole_bytes(file: Path) -> tuple[int, int]:
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
class _Reader:
    """Reads one file; what is wrong with it is added to `problems`."""

    file: Path
    needed: Collection[str]
    texts: Collection[str]
    problems: list[TableProblem] = field(default_factory=list)

    def note(self, what: str, rows: int = 0) -> None:
        self.problems.append(TableProblem(f"The file {self.file} {what}", rows))

    def opened(self) -> tuple[tuple[str, ...], Source]:
        with self.file.open("rb") as opened:
            header = opened.readline()
        if not header.strip():
            raise _UnreadableError("is empty and has not even a header.")
        try:
            names = next(csv.reader([header.decode("utf-8-sig")]))
        except (UnicodeDecodeError, csv.Error) as error:
            raise _no_table(error) from None
        if any(set(name) & {"\r", "\n"} for name in names):
            raise _UnreadableError("has a line break in the name of a column.")
        whole, _ = _whole_bytes(self.file)
        if whole == 0:
            raise _UnreadableError("ends in the middle of its header.")
        cut = cut_row(self.file)
        if cut is None:
            return tuple(names), self.file
        self.problems.append(cut)
        return tuple(names), io.BytesIO(self.file.read_bytes()[:whole])

    def numbers(self, source: Source, columns: Sequence[str]) -> pd.DataFrame:
        try:  # without dtypes: the reader takes twice as long with them as without
            table = pd.read_csv(source, low_memory=False)
        except UnicodeDecodeError as error:
            raise _no_table(error) from None
        except ValueError:  # ParserError is one, too
            return self._slowly(source, columns)
        if all(kind.kind in "if" for name, kind in table.dtypes.items() if name not in self.texts):
            return table
        return self._slowly(source, columns)

    def _slowly(self, source: Source, columns: Sequence[str]) -> pd.DataFrame:
        if isinstance(source, Path):
            source = io.BytesIO(source.read_bytes())
        rows = sum(1 for line in source.getvalue().splitlines() if line.strip()) - 1
        source.seek(0)
        try:
            table = pd.read_csv(source, dtype=object, on_bad_lines="skip", low_memory=False)
        except ValueError as error:
            raise _no_table(error) from None
        longer = rows - len(table)
        if longer > 0:
            self.note("has rows with more cells than its header has columns.", longer)
        wrong = np.zeros(len(table), dtype=bool)
        for name in (name for name in columns if name not in self.texts):
            cells = table[name]
            table[name] = pd.to_numeric(cells, errors="coerce").astype(np.float64)
            bad = (table[name].isna() & cells.notna()).to_numpy()
            if not bad.any():
                continue
            row = int(bad.argmax())
            place = f"has {cells.iloc[row]!r} in line {row + 2}"
            if self._is_known(name):
                rows_left_out = int((bad & ~wrong).sum())
                self.note(f"{place} where column {name} needs a number.", rows_left_out)
                wrong |= bad
            else:
                self.note(
                    f"{place} of column {name}, which mimokit does not know; what is not a number "
                    "there is left out."
                )
        return table[~wrong]

    def _is_known(self, column: str) -> bool:
        of_modules = any(column.endswith(f"_{name}") for name in MODULE_COLUMNS)
        return of_modules or column in (*STEP_COLUMNS, *EVALUATION_COLUMNS, *self.needed)

    def with_keys(self, table: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
        for name in keys:
            values = table[name].to_numpy()
            if values.dtype.kind == "i":
                continue
            good = np.isfinite(values) & (values == np.floor(values))
            if not good.all():
                line = int(np.argmin(good)) + 2
                self.note(f"has no {name} in line {line}.", int((~good).sum()))
                table = table[good]
            table = table.assign(**{name: table[name].astype(np.int64)})
        return table


def _no_table(error: Exception) -> _UnreadableError:
    return _UnreadableError(f"is not a readable CSV table ({error}).")


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as dicts."""
    return [{str(name): row[name] for name in row} for row in table.to_dict("records")]
