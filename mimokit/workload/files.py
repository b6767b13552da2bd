"""Mixes in files: Parquet, CSV and JSON lines, read in pieces, however long they are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mimokit.progress import Bar, shown
from mimokit.workload.mix import (
    EMPTY,
    MOST_ROWS,
    TEXT,
    SampleMix,
    bad_mix,
    check_names,
    check_values,
    is_column,
)
from mimokit.workload.presets import mix_names, named_mix

SUFFIXES = (".parquet", ".csv", ".jsonl")
TOTALS = b"mimokit.totals"
"""Key of the totals in the metadata of a Parquet file."""
PIECE = 2**16
"""Rows of a piece of a Parquet file; pieces of text files have a mebibyte."""


def read_mix(
    source: str | os.PathLike[str], samples: int = MOST_ROWS, *, seed: int = 0
) -> SampleMix:
    """Return the mix of a file, or a shipped one.

    A file is read in pieces: its totals are exact, and of its rows so many are kept, drawn evenly.

    Args:
        source: a .parquet, .csv or .jsonl file with a column `text` and columns such as
            `images.items` (see `SampleMix`), others being left out; or a name of `mix_names`.
        samples: rows to keep.

    Raises:
        ConfigError: there is no such file or name, it cannot be read, or its columns are refused.
    """
    name = os.fspath(source)
    path = Path(name)
    if path.suffix not in SUFFIXES:
        if name in mix_names():
            return named_mix(name)
        known = ", ".join(mix_names())
        raise bad_mix(name, f"it is neither a {', '.join(SUFFIXES)} file nor one of {known}")
    if not path.is_file():
        raise bad_mix(name, "there is no such file; write it with mimokit measure")
    return _read(path, samples, seed, path.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _read(path: Path, samples: int, seed: int, changed: int) -> SampleMix:
    """Return the mix of a file; a planner predicts it many times until the file changes."""
    name = str(path)
    kept, reservoir = _totals_of(path), Reservoir(name, samples, np.random.default_rng(seed))
    with shown(f"Reading {path.name}", total=path.stat().st_size) as bar:
        _fill(reservoir, path, bar)
    mix = reservoir.mix()
    return mix if kept is None else replace(mix, **kept)


@dataclass
class Reservoir:
    """Rows of a stream: so many of them, each as likely as the others, and the totals of all.

    Every row draws a key, and those with the least keys are kept. `columns` never has more than
    them and a piece.
    """

    source: str
    samples: int
    generator: np.random.Generator
    rows: int = 0
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    _keys: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))

    def start(self, names: Sequence[str]) -> None:
        """Refuse columns that make no mix; note those that are not counts."""
        check_names(names, self.source)
        self.left_out = tuple(name for name in names if not is_column(name))

    def add(self, piece: dict[str, np.ndarray]) -> None:
        """Take a piece of the stream; raises `ConfigError` for a value that is refused."""
        count = len(piece[TEXT])
        for name, column in piece.items():
            check_values(column, name, self.source, self.rows)
            self.sums[name] = self.sums.get(name, 0.0) + float(column.sum())
            self.most[name] = max(self.most.get(name, 0.0), float(column.max(initial=0.0)))
        places = np.arange(self.rows, self.rows + count, dtype=np.float64)
        keys = np.column_stack([self.generator.random(count), places])
        keys = np.concatenate([self._keys, keys])
        joined = {
            name: np.concatenate([self.columns.get(name, np.zeros(0)), column])
            for name, column in piece.items()
        }
        least = slice(None)
        if len(keys) > self.samples:
            least = np.argpartition(keys[:, 0], self.samples)[: self.samples]  # type: ignore[assignment]
        self._keys = keys[least]
        self.columns = {name: column[least] for name, column in joined.items()}
        self.rows += count

    def mix(self) -> SampleMix:
        """Return the mix of what was taken, its rows in the order of the stream."""
        if not self.rows:
            raise bad_mix(self.source, EMPTY)
        order = np.argsort(self._keys[:, 1])
        columns = {name: column[order] for name, column in self.columns.items()}
        return SampleMix(columns, self.rows, self.sums, self.most, self.source, self.left_out)


def write_mix(mix: SampleMix, path: str | os.PathLike[str]) -> Path:
    """Write a mix to a Parquet file, with its totals, and return the path."""
    import pyarrow
    from pyarrow import parquet

    target = Path(path)
    if target.suffix != ".parquet":
        raise bad_mix(str(target), "a mix is written to a .parquet file; name it so")
    totals = {"rows": mix.rows, "sums": dict(mix.sums), "most": dict(mix.most)}
    table = pyarrow.table(dict(mix.columns)).replace_schema_metadata({TOTALS: json.dumps(totals)})
    part = target.with_name(f".{target.name}.part")
    try:
        parquet.write_table(table, part)
        os.replace(part, target)
    except OSError as error:
        raise bad_mix(str(target), f"it cannot be written ({error.strerror or error})") from None
    finally:
        part.unlink(missing_ok=True)
    return target


def _totals_of(path: Path) -> dict[str, Any] | None:
    """Return the totals that `write_mix` put into a file."""
    if path.suffix != ".parquet":
        return None
    from pyarrow import lib, parquet

    try:
        told = (parquet.read_schema(path).metadata or {}).get(TOTALS)
    except (lib.ArrowException, OSError):
        return None  # reading the rows says what is wrong
    return None if told is None else json.loads(told)


def _fill(reservoir: Reservoir, path: Path, bar: Bar) -> None:
    from pyarrow import lib

    source = reservoir.source
    try:
        for batch in _batches(path, reservoir, bar):
            names = filter(is_column, batch.schema.names)
            reservoir.add({name: _column(batch.column(name), name, source) for name in names})
    except (lib.ArrowException, OSError) as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise bad_mix(source, f"it cannot be read ({why}); give counts, a row per sample") from None


def _batches(path: Path, reservoir: Reservoir, bar: Bar) -> Iterable[Any]:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        file = parquet.ParquetFile(path, pre_buffer=False)  # else what was read stays in memory
        names = file.schema_arrow.names
        reservoir.start(names)
        size, total = path.stat().st_size, max(file.metadata.num_rows, 1)
        read = 0
        for batch in file.iter_batches(PIECE, columns=[*filter(is_column, names)]):
            yield batch
            read += batch.num_rows
            bar.update(size * read / total)
        return
    if not path.stat().st_size:
        return
    from pyarrow import csv
    from pyarrow import json as lines

    open_file = csv.open_csv if path.suffix == ".csv" else lines.open_json
    with path.open("rb") as bytes_read, open_file(bytes_read) as batches:
        reservoir.start(batches.schema.names)
        for batch in batches:
            yield batch
            bar.update(bytes_read.tell())


def _column(values: Any, name: str, source: str) -> np.ndarray:
    """Return numbers as float64; what JSON lines leave out of a modality is 0, of text nothing."""
    from pyarrow import types

    kind = values.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind)):
        strange = next((value.as_py() for value in values if value.is_valid), None)
        raise bad_mix(
            source, f"column {name!r} has {strange!r}, which is not a number; give counts"
        )
    column: np.ndarray = values.cast("float64").to_numpy(zero_copy_only=False)
    if values.null_count and name != TEXT:
        column = np.where(values.is_null().to_numpy(zero_copy_only=False), 0.0, column)
    return column
