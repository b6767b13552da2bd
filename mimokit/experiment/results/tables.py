"""CSV files to which whole rows are appended while a run goes on."""

import csv
import errno
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mimokit.result_files import EachTime, write_table

CellRow = Mapping[str, Any]


class AppendedTable:
    """A table that grows by whole rows, and that a reader may open at any time.

    The file is opened for every addition: it may have been deleted meanwhile, and nothing stays in
    a buffer of this process.

    Args:
        path: of the file; a symbolic link there is replaced.
        columns: the first columns. A row with further ones widens the whole file.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._path = path
        self._columns = list(columns)
        self._waiting: list[CellRow] = []

    def append(self, rows: Iterable[CellRow]) -> None:
        """Add rows; those that an OSError keeps out are written with the next ones."""
        self._waiting.extend(rows)
        if not self._waiting:
            return
        known = set(self._columns)
        further = dict.fromkeys(name for row in self._waiting for name in row if name not in known)
        if further:
            self._widen(list(further))
        self._write()
        self._waiting.clear()

    def _widen(self, further: list[str]) -> None:
        columns = [*self._columns, *further]
        if self._path.is_file() and not self._path.is_symlink():
            write_table(self._path, EachTime(self._rows), columns)
        self._columns = columns

    def _rows(self) -> Iterator[CellRow]:
        with self._path.open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)

    def _write(self) -> None:
        descriptor = _opened(self._path)
        try:
            size = os.fstat(descriptor).st_size
            content = _text(self._waiting, self._columns, heading=size == 0).encode()
            try:
                _write_all(descriptor, content)
            except OSError:
                os.ftruncate(descriptor, size)
                if size == 0:  # a table without a heading is none
                    self._path.unlink(missing_ok=True)
                raise
        finally:
            os.close(descriptor)


def _opened(path: Path) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        path.unlink()
    return os.open(path, flags, 0o666)


def _write_all(descriptor: int, content: bytes) -> None:
    """Write with one call: a disk that fills up takes a part, which is an error here."""
    if os.write(descriptor, content) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _text(rows: Sequence[CellRow], columns: Sequence[str], *, heading: bool) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="")
    if heading:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
