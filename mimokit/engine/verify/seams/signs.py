"""Random signs and numbers of the places of a tensor, the same on every rank."""

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


def row_numbers(places: NDArray[np.int64]) -> torch.Tensor:
    """Return a random number of every row, int64; 0 for a negative place.

    The sum, modulo 2^64, of the products of row and column number over the places that a rank has
    tells which these are, and adds up to that of the whole tensor.
    """
    return _numbers(places, _ROWS)


def column_number(places: NDArray[np.int64]) -> torch.Tensor:
    """Return the sum of the random numbers of columns, modulo 2^64: int64; see `row_numbers`."""
    return _numbers(places, _COLUMNS).sum()


def _numbers(places: NDArray[np.int64], stream: int) -> torch.Tensor:
    return torch.from_numpy(np.where(places < 0, 0, _mixed(places, stream).view(np.int64)))


def _signs(places: NDArray[np.int64], stream: int) -> NDArray[np.float64]:
    """Return -1 or 1: the lowest bits of a random number of each place.

    Padding, which has a negative place, has a sign of 0.
    """
    bits = (_mixed(places, stream)[..., None] >> np.arange(SIGNS, dtype=np.uint64)) & np.uint64(1)
    return np.where(places[..., None] < 0, 0.0, 1.0 - 2.0 * bits.astype(np.float64))


def _mixed(places: NDArray[np.int64], stream: int) -> NDArray[np.uint64]:
    """Return a hash of each place (splitmix64, Steele et al. 2014)."""
    mixed = places.astype(np.uint64) + np.uint64(stream * 0x9E3779B97F4A7C15 % 2**64)
    mixed = mixed * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


@functools.lru_cache(maxsize=256)
def all_columns(number: int, salt: int) -> torch.Tensor:
    """Return the signs of the columns of a tensor that a rank has whole."""
    return column_signs(np.arange(number), salt)


@functools.lru_cache(maxsize=256)
def all_columns_number(number: int) -> torch.Tensor:
    """Return `column_number` of a tensor that a rank has whole."""
    return column_number(np.arange(number))
