"""Patterns: what a wrong array is in place of the right one."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mimokit.planning.seams import Floats

CLOSE = 1e-3
"""Relative difference below which a wrong tensor is taken for what a pattern says."""


@dataclass(frozen=True)
class Moved:
    """The right array with its places along one dimension elsewhere.

    Attributes:
        places: by which they are shifted, around the end; 0: they are in reverse order.
    """

    axis: int
    places: int


def close(values: Floats, other: Floats, within: float = CLOSE) -> bool:
    """Return whether two arrays are the same but for a share of the largest entry."""
    scale = np.abs(other).max(initial=0.0)
    return bool(scale > 0 and np.abs(values - other).max() <= within * scale)


def factor_of(values: Floats, right: Floats, within: float = CLOSE) -> float | None:
    """Return by what the right array has been multiplied; None if it has not been."""
    factor = float((values * right).sum() / max((right * right).sum(), 1e-300))
    return factor if close(values, factor * right, within) else None


def moves_of(
    values: Floats, right: Floats, farthest: int = 1, within: float = CLOSE
) -> Iterator[Moved]:
    """Yield how the places of the right array have been moved, if they have been."""
    for axis in range(right.ndim):
        for distance in range(1, min(farthest, right.shape[axis] - 1) + 1):
            for places in (distance, -distance):
                if close(values, np.roll(right, places, axis), within):
                    yield Moved(axis, places)
                    return
        if close(values, np.flip(right, axis), within):
            yield Moved(axis, 0)
            return
