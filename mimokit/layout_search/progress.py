"""How far a search is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class SearchProgress:
    """How far a search is.

    Attributes:
        share: of the search, from 0 to 1.
        evaluated: layouts evaluated.
        best: the least of what is to be small so far, or None.
    """

    share: float
    evaluated: int
    best: float | None


ProgressCallback = Callable[[SearchProgress], object]
CancelCheck = Callable[[], bool]
