"""Which rows of which samples a tensor on a rank has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from mimokit.engine.models.rng import MaskRows
from mimokit.engine.parallel.context import SequenceCut, positions_of_rank
from mimokit.engine.verify.seams.signs import row_signs

ITEM = 1 << 20
"""Rows of a sample are numbered in their item, and items begin at multiples of this."""


@dataclass(frozen=True)
class RowPlaces:
    """The rows of a tensor [rows, columns].

    Attributes:
        samples: of every row, [rows] int64.
        rows: place of every row in its sample, [rows] int64.
    """

    samples: NDArray[np.int64]
    rows: NDArray[np.int64]

    @cached_property
    def signs(self) -> torch.Tensor:
        """Return the signs of the rows, [rows, SIGNS]."""
        return row_signs(self.rows)

    @cached_property
    def numbered(self) -> tuple[list[int], torch.Tensor]:
        """The samples, ascending, and for every row the index of its sample."""
        samples, index = np.unique(self.samples, return_inverse=True)
        return samples.tolist(), torch.from_numpy(index.reshape(-1))


def places_of_layer(cut: SequenceCut, computed: MaskRows, rows: int) -> tuple[RowPlaces, RowPlaces]:
    """Return the places of hidden states [rows, columns of the batch, …], and those in a matrix.

    With sequence parallelism tensor-parallel ranks share positions outside of matrices.

    Args:
        rows: first dimension of the hidden states on this rank.
    """
    batch = tuple(zip(computed.samples.tolist(), computed.items.tolist(), strict=True))
    rank, context = cut.groups.cp.rank(), cut.context
    own = _places(batch, rows * cut.parts, context, rank, cut.causal)
    if cut.parts == context:
        return own, own
    size, place = rows * len(batch), cut.groups.tp.rank()
    part = slice(place * size, (place + 1) * size)
    return RowPlaces(own.samples[part], own.rows[part]), own


@lru_cache(maxsize=64)
def _places(
    batch: tuple[tuple[int, int], ...], positions: int, context: int, rank: int, causal: bool
) -> RowPlaces:
    """Return the places of [positions of a context-parallel rank, columns of the batch]."""
    samples, items = np.array(batch, np.int64).reshape(-1, 2).T
    if context == 1:
        own = np.arange(positions)
    else:
        own = positions_of_rank((positions,), context, rank, causal).numpy()
    return RowPlaces(
        np.tile(samples, len(own)), (own[:, None] + ITEM * items[None]).reshape(-1).astype(np.int64)
    )


def places_of_rows(samples: range, counts: Sequence[int]) -> RowPlaces:
    """Return the places of the rows of samples one after another, so many of each."""
    own = np.repeat(np.arange(samples.start, samples.stop), counts)
    rows = [np.arange(count) for count in counts]
    return RowPlaces(own, np.concatenate([*rows, np.zeros(0, np.int64)]).astype(np.int64))


def all_in_one(number: int) -> RowPlaces:
    """Return the places of a parameter, whose entries are columns of one row."""
    return RowPlaces(np.zeros(number, np.int64), np.zeros(number, np.int64))
