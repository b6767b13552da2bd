"""Which rows of which samples a tensor on a rank has, and which columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from mimokit.engine.models.rng import MaskRows
from mimokit.engine.parallel.context import SequenceCut, positions_of_rank
from mimokit.engine.parallel.marks import shard_of
from mimokit.engine.parallel.row import SampleRow
from mimokit.engine.verify.seams.signs import row_numbers, row_signs

ITEM = 1 << 20
"""Rows of a sample are numbered in their item, and items begin at multiples of this."""


@dataclass(frozen=True)
class RowPlaces:
    """The rows of a tensor [rows, columns].

    Attributes:
        samples: of every row, [rows] int64.
        rows: place of every row in its sample, [rows] int64; negative: padding.
    """

    samples: NDArray[np.int64]
    rows: NDArray[np.int64]

    @cached_property
    def padding(self) -> torch.Tensor | None:
        """Which rows are padding, [rows, 1] bool; None: no row is."""
        padded = self.rows < 0
        return torch.from_numpy(padded)[:, None] if padded.any() else None

    def without_padding(self, lengths: Mapping[int, int]) -> RowPlaces:
        """Return places of tokens of which those behind the length of their sample are padding."""
        if not lengths:
            return self
        most = np.array([lengths.get(sample, ITEM) for sample in self.samples.tolist()], np.int64)
        return replace(self, rows=np.where(self.rows < most, self.rows, -1))

    def signs(self, salt: int) -> torch.Tensor:
        """Return the signs of the rows, [rows, SIGNS]; 0 of padding."""
        if salt not in self._signs:
            self._signs[salt] = row_signs(self.rows, salt)
        return self._signs[salt]

    @cached_property
    def _signs(self) -> dict[int, torch.Tensor]:
        return {}

    @cached_property
    def numbers(self) -> torch.Tensor:
        """A random number of every row, [rows] int64; see `row_numbers`."""
        return row_numbers(self.rows)

    @cached_property
    def numbered(self) -> tuple[list[int], torch.Tensor]:
        """The samples of which it has more than padding, ascending, and the index of every row.

        Rows of padding, of whose samples nothing may be here, have the index of any other.
        """
        samples = np.unique(self.samples[self.rows >= 0])
        index = np.searchsorted(samples, self.samples)
        return samples.tolist(), torch.from_numpy(np.minimum(index, max(0, len(samples) - 1)))


def places_of_layer(
    cut: SequenceCut,
    computed: MaskRows,
    row: SampleRow | None,
    rows: int,
    positions: int | None = None,
) -> tuple[RowPlaces, RowPlaces]:
    """Return the places of hidden states [rows, columns of the batch, …], and those in a matrix.

    With sequence parallelism tensor-parallel ranks share positions outside of matrices.

    Args:
        row: in which the samples are, which is one column then; None: they are in none.
        rows: first dimension of the hidden states on this rank.
        positions: of an item; what ranks have besides is padding. None: there is none.
    """
    batch = tuple(zip(computed.samples.tolist(), computed.items.tolist(), strict=True))
    padded = rows * cut.parts
    lengths = (padded,) if row is None else row.lengths
    held = _positions(lengths, cut.context, cut.groups.cp.rank(), cut.causal)
    if row is None:
        own = _places(batch, held, padded if positions is None else positions)
    else:
        own = _places_in_row(batch, held, lengths)
    if cut.parts == cut.context:
        return own, own
    size, place = len(own.rows) * cut.context // cut.parts, cut.groups.tp.rank()
    part = slice(place * size, (place + 1) * size)
    return RowPlaces(own.samples[part], own.rows[part]), own


def _positions(lengths: tuple[int, ...], context: int, rank: int, causal: bool) -> tuple[int, ...]:
    if context == 1:
        return tuple(range(sum(lengths)))
    return tuple(positions_of_rank(lengths, context, rank, causal).tolist())


@lru_cache(maxsize=64)
def _places(batch: tuple[tuple[int, int], ...], held: tuple[int, ...], positions: int) -> RowPlaces:
    """Return the places of [positions of a context-parallel rank, columns of the batch]."""
    samples, items = np.array(batch, np.int64).reshape(-1, 2).T
    own = np.array(held, np.int64)
    rows = np.where(own[:, None] < positions, own[:, None] + ITEM * items[None], -1)
    return RowPlaces(np.tile(samples, len(own)), rows.reshape(-1))


@lru_cache(maxsize=64)
def _places_in_row(
    batch: tuple[tuple[int, int], ...], held: tuple[int, ...], lengths: tuple[int, ...]
) -> RowPlaces:
    own, whole = np.array(held, np.int64), places_of_rows([sample for sample, _ in batch], lengths)
    return RowPlaces(whole.samples[own], whole.rows[own])


def places_of_rows(samples: Sequence[int], counts: Sequence[int]) -> RowPlaces:
    """Return the places of the rows of samples one after another, so many of each."""
    own = np.repeat(np.array(samples, np.int64), counts)
    rows = [np.arange(count) for count in counts]
    return RowPlaces(own, np.concatenate([*rows, np.zeros(0, np.int64)]).astype(np.int64))


ONE_ROW = RowPlaces(np.zeros(1, np.int64), np.zeros(1, np.int64))
"""The place of a parameter, whose entries are columns of one row."""


Columns = NDArray[np.int64] | None
"""Place of every column of a rank in the whole tensor; None: the rank has all columns."""


def share_of_columns(weight: torch.nn.Parameter, dimension: int) -> Columns:
    """Return the share of a rank along a dimension of a weight.

    Args:
        dimension: 0: of the output of its matrix; 1: of the input.
    """
    shard = shard_of(weight)
    if shard.cut.dimension != dimension:
        return None
    length = shard.cut.whole[dimension]
    alone = replace(shard.cut, whole=(length,), dimension=0)
    return alone.at(shard.place).of(np.arange(length), padding=-1).astype(np.int64)
