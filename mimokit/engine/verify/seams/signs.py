"""Random signs of the places of a tensor: the same on every rank, whatever part it has."""

from __future__ import annotations

import functools
import zlib

import numpy as np
import torch
from numpy.typing import NDArray

from mimokit.planning.seams import SIGNS, Seam

SALTS = 4
"""Sets of signs. Of 400 places two have the same signs, more likely than not, and a sketch does not
change where these two are exchanged. Tensors after it have other signs."""

_ROWS, _COLUMNS = 1, 2


def salt_of(seam: Seam) -> int:
    """Return which signs a tensor gets, on every rank, in one process, and in every step."""
    return zlib.crc32(f"{seam.operation} {seam.phase}".encode()) % SALTS


def row_signs(places: NDArray[np.int64], salt: int) -> torch.Tensor:
    """Return the signs of rows of a sample, [..., SIGNS] float64; 0 for a negative place."""
    return torch.from_numpy(_signs(places, _ROWS + 2 * salt))


def column_signs(places: NDArray[np.int64], salt: int) -> torch.Tensor:
    """Return the signs of columns, [..., SIGNS] float64; 0 for a negative place: padding."""
    return torch.from_numpy(_signs(places, _COLUMNS + 2 * salt))


def _signs(places: NDArray[np.int64], stream: int) -> NDArray[np.float64]:
    """Return -1 or 1: the lowest bits of a hash of each place (splitmix64, Steele et al. 2014).

    Padding, which has a negative place, has a sign of 0.
    """
    mixed = places.astype(np.uint64) + np.uint64(stream * 0x9E3779B97F4A7C15 % 2**64)
    mixed = mixed * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed = mixed ^ (mixed >> np.uint64(31))
    bits = (mixed[..., None] >> np.arange(SIGNS, dtype=np.uint64)) & np.uint64(1)
    return np.where(places[..., None] < 0, 0.0, 1.0 - 2.0 * bits.astype(np.float64))


@functools.lru_cache(maxsize=256)
def all_columns(number: int, salt: int) -> torch.Tensor:
    """Return the signs of the columns of a tensor that a rank has whole."""
    return column_signs(np.arange(number), salt)
