"""The bars of a histogram of a column of samples, its tail marked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mimokit.workload.mix import TAIL

BINS = 24
TAILS = ("most samples", "largest 5 %")


def histogram(column: np.ndarray, most: float | None = None) -> Iterator[dict[str, Any]]:
    """Yield the bars of a column, up to its largest value or another one."""
    edges = edges_of(column, float(column.max()) if most is None else most)
    counts, _ = np.histogram(column, edges)
    begin = np.quantile(column, TAIL)
    for count, left, right in zip(counts, edges, edges[1:], strict=False):
        bar = {"from": float(left), "to": float(right), "share": float(count) / len(column)}
        yield {**bar, "tail": TAILS[int(left + right > 2 * begin)]}


def edges_of(column: np.ndarray, most: float) -> np.ndarray:
    """Return where bars begin and end: around whole numbers where there are few."""
    if most < BINS and not np.any(column % 1):
        return np.arange(most + 2) - 0.5
    return np.linspace(0, max(most, 1e-9), BINS + 1)
