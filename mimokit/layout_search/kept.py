"""Layouts that a search remembers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Kept:
    """Layouts worth remembering, one array entry each.

    Attributes:
        seconds: of a step, by the closed forms.
        mode: position in `MODES`.
        others: candidates of the other modules, one column each; -1 where they follow.
    """

    seconds: NDArray[np.float64]
    memory: NDArray[np.float64]
    gpus: NDArray[np.float64]
    score: NDArray[np.float64]
    mode: NDArray[np.int64]
    language: NDArray[np.int64]
    others: NDArray[np.int64]

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Kept:
        """Return some of them."""
        return Kept(*(column[rows] for column in vars(self).values()))


def joined(parts: Sequence[Kept]) -> Kept:
    """Return all layouts of several records."""
    columns = ([getattr(part, name) for part in parts] for name in vars(parts[0]))
    return Kept(*map(np.concatenate, columns))
