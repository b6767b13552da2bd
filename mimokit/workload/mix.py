"""The samples of a data set as numbers, and the totals of all that were read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimokit.config.errors import ConfigError, Problem
from mimokit.units import shown

TEXT = "text"
"""Column of the tokens of text."""
MEASURES = ("items", "size", "seconds", "frames")
"""What a column MODALITY.MEASURE counts: images, videos or recordings of a sample; patches or
positions of each, on average; seconds and frames of all of them together."""
COUNTS = ("items", "frames", "seconds")
"""Of them, those that say how much there is; a modality has at least one."""
MOST_ROWS = 10_000
"""Rows that a mix keeps by default."""
TAIL = 0.95
"""The quantile behind which the tail of a column begins."""
EMPTY = "it has 0 samples; give it at least one"

Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class SampleMix:
    """What a layout is planned for: samples, each as a row of numbers.

    Attributes:
        columns: name -> [rows kept], float64: `text`, and MODALITY.MEASURE of `MEASURES`.
        rows: samples that were read, of which those that are kept were drawn evenly.
        sums, most: column -> exact sum and largest value over all that were read.
        source: the file or data set, for sentences.
        left_out: columns that count nothing by their names.
    """

    columns: Columns = field(repr=False, compare=False)
    rows: int
    sums: Mapping[str, float] = field(repr=False)
    most: Mapping[str, float] = field(repr=False)
    source: str = "mix"
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.columns[TEXT])

    @property
    def modalities(self) -> tuple[str, ...]:
        """The modalities of its columns, in their order."""
        return tuple(dict.fromkeys(name.rpartition(".")[0] for name in self.columns if "." in name))

    def get(self, modality: str, measure: str) -> np.ndarray | None:
        """Return a column of a modality, None if the mix has it not."""
        return self.columns.get(f"{modality}.{measure}")

    def items(self, modality: str) -> np.ndarray:
        """Return what an encoder computes in every sample: [rows], frames, or else items."""
        for measure in ("frames", "items", "seconds"):
            if (column := self.get(modality, measure)) is not None:
                return column
        return np.zeros(len(self))

    @cached_property
    def text_only(self) -> NDArray[np.bool_]:
        """Whether a sample has nothing but text: [rows]."""
        if not self.modalities:
            return np.ones(len(self), dtype=bool)
        present = np.array([self.items(name) > 0 for name in self.modalities])
        return np.asarray(~present.any(axis=0))

    def chosen(self, rows: np.ndarray) -> SampleMix:
        """Return the mix of some of its rows alone, with their totals."""
        return mix_of({name: column[rows] for name, column in self.columns.items()}, self.source)

    def table(self) -> list[dict[str, Any]]:
        """Return a row per column: mean of all that was read, quantiles of what is kept."""
        return [
            {
                "column": name,
                "mean": self.sums[name] / self.rows,
                "p50": float(np.quantile(column, 0.5)),
                "p95": float(np.quantile(column, TAIL)),
                "most": self.most[name],
                "sum": self.sums[name],
            }
            for name, column in self.columns.items()
        ]

    def correlations(self) -> Iterator[tuple[str, str, float]]:
        """Yield (column, column, Pearson's r) of every pair of columns that both vary."""
        varying = [name for name, column in self.columns.items() if np.ptp(column) > 0]
        if len(varying) > 1:
            pearson = np.corrcoef([self.columns[name] for name in varying])
            for row, first in enumerate(varying):
                for place, second in enumerate(varying[:row]):
                    yield first, second, float(pearson[row, place])


def mix_of(columns: Mapping[str, Any], source: str = "mix") -> SampleMix:
    """Return the mix of columns of equal length.

    Raises:
        ConfigError: there are no samples; text is missing, or what a modality has; a value is
            negative or not a number; columns have several lengths.
    """
    check_names(columns, source)
    taken = {name: _numbers(columns[name], name, source) for name in columns if is_column(name)}
    lengths = {name: len(column) for name, column in taken.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise bad_mix(source, f"its columns have several lengths ({told}); give each sample a row")
    if not lengths[TEXT]:
        raise bad_mix(source, EMPTY)
    for name, column in taken.items():
        check_values(column, name, source)
    sums = {name: float(column.sum()) for name, column in taken.items()}
    most = {name: float(column.max()) for name, column in taken.items()}
    left_out = tuple(name for name in columns if name not in taken)
    return SampleMix(taken, lengths[TEXT], sums, most, source, left_out)


def is_column(name: str) -> bool:
    """Tell whether a column is one of a mix: identifiers and texts of a file are none."""
    return name == TEXT or bool(re.fullmatch(rf"[\w-]+\.({'|'.join(MEASURES)})", name))


def check_names(names: Iterable[str], source: str) -> None:
    """Refuse columns without the tokens of text, or of a modality without a count."""
    known = [name for name in names if is_column(name)]
    there = ", ".join(map(str, names)) or "none"
    if TEXT not in known:
        raise bad_mix(
            source,
            f"the column {TEXT!r}, tokens of text of each sample, is missing (its columns: "
            f"{there}); add it, 0 where a sample has none",
        )
    for modality in dict.fromkeys(name.rpartition(".")[0] for name in known if "." in name):
        if not any(f"{modality}.{measure}" in known for measure in COUNTS):
            raise bad_mix(
                source,
                f"the column '{modality}.items' is missing, though it has other columns of "
                f"{modality!r}; add it, 0 where a sample has none",
            )


def check_values(column: np.ndarray, name: str, source: str, first: int = 0) -> None:
    """Refuse the first value that is negative, infinite or no number, by its row."""
    wrong = ~(np.isfinite(column) & (column >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        what = "is no number" if np.isnan(column[row]) else f"is {column[row]:g}"
        raise bad_mix(
            source,
            f"column {name!r} {what} in sample {first + row:,}; it must be a number of at least 0",
        )


def _numbers(values: Any, name: str, source: str) -> np.ndarray:
    try:
        column = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        strange = next((each for each in values if not isinstance(each, Real)), None)
        raise bad_mix(
            source, f"column {name!r} has {shown(strange)}, which is not a number; give counts"
        ) from None
    return np.atleast_1d(column)


def bad_mix(source: str, why: str, field: str = "workload") -> ConfigError:
    """Return the error that a mix is refused."""
    return ConfigError([Problem("data", field, source, f"Workload {shown(source)}: {why}.")])


def from_rows(rows: Sequence[Mapping[str, float]], source: str) -> SampleMix:
    """Return the mix of samples that are mappings; what a sample leaves out is 0."""
    if not rows:
        raise bad_mix(source, EMPTY)
    names = dict.fromkeys(name for row in rows for name in row)
    return mix_of({name: [row.get(name, 0) for row in rows] for name in names}, source)
