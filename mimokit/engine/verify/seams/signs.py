"""Random signs of the places of a tensor: the same on every rank, whatever part it has."""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray

from mimokit.planning.seams import SIGNS

_ROWS, _COLUMNS = 1, 2


def row_signs(places: NDArray[np.int64]) -> torch.Tensor:
    """Return the signs of rows of a sample, [..., SIGNS] float64."""
    return torch.from_numpy(_signs(places, _ROWS))


def column_signs(places: NDArray[np.int64]) -> torch.Tensor:
    """Return the signs of columns, [..., SIGNS] float64; 0 for a negative place: padding."""
    signs = _signs(places, _COLUMNS)
    return torch.from_numpy(np.where(places[..., None] < 0, 0.0, signs))


def _signs(places: NDArray[np.int64], stream: int) -> NDArray[np.float64]:
    """Return -1 or 1: the lowest bits of a hash of each place (splitmix64, Steele et al. 2014)."""
    mixed = places.astype(np.uint64) + np.uint64(stream * 0x9E3779B97F4A7C15 % 2**64)
    mixed = mixed * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed = mixed ^ (mixed >> np.uint64(31))
    bits = (mixed[..., None] >> np.arange(SIGNS, dtype=np.uint64)) & np.uint64(1)
    return 1.0 - 2.0 * bits.astype(np.float64)


@functools.lru_cache(maxsize=256)
def all_columns(number: int) -> torch.Tensor:
    """Return the signs of the columns of a tensor that a rank has whole."""
    return column_signs(np.arange(number))
