"""Fronts of layouts that none beats in all of some numbers, and the layouts worth remembering."""

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


def joined_fronts(parts: Sequence[Kept]) -> Kept:
    """Return all layouts of several records."""
    columns = ([getattr(part, name) for part in parts] for name in vars(parts[0]))
    return Kept(*map(np.concatenate, columns))


Floats = NDArray[np.float64]


def lower_edges(gpus: Floats, seconds: Floats, memory: Floats) -> NDArray[np.intp]:
    """Return the indices of points that no quicker one with as many GPUs beats in memory.

    Of points that are equally quick some that are beaten may stay. GPUs must ascend: then the
    points are sorted by a fast sort of small numbers, and offsets by GPUs make one running minimum
    start anew for each number of them.
    """
    if not len(gpus):
        return np.zeros(0, dtype=np.intp)
    group = np.cumsum(np.diff(gpus, prepend=gpus[0]) != 0).astype(np.int64)
    chosen = np.flatnonzero(_may_be_edges(group, seconds, memory))
    order = chosen[np.argsort(seconds[chosen], kind="stable")]
    order = order[np.argsort(group[order], kind="stable")]
    height = 2.0 * float(memory.max()) + 1.0
    lowered = memory[order] - group[order] * height
    before = np.concatenate(([np.inf], np.minimum.accumulate(lowered)[:-1]))
    return order[lowered < before]


def _may_be_edges(group: NDArray[np.int64], seconds: Floats, memory: Floats) -> NDArray[np.bool_]:
    """Return the points that neither the quickest nor the leanest of their group beats."""
    starts = np.flatnonzero(np.diff(group, prepend=group[0] + 1))

    def least_of_best(best: Floats, other: Floats) -> Floats:
        ends = np.minimum.reduceat(best, starts)[group]
        least: Floats = np.minimum.reduceat(np.where(best == ends, other, np.inf), starts)
        return least[group]

    return (seconds <= least_of_best(memory, seconds)) & (memory <= least_of_best(seconds, memory))


def front(gpus: Floats, seconds: Floats, memory: Floats) -> NDArray[np.intp]:
    """Return the indices of points that none beats in all three, fewest GPUs and seconds first.

    Of equal points the first is kept.
    """
    order = np.lexsort((memory, seconds, gpus))
    kept: list[NDArray[np.intp]] = []
    stairs, least = np.array([-np.inf]), np.array([np.inf])
    for same in np.split(order, np.flatnonzero(np.diff(gpus[order])) + 1):
        before = least[np.searchsorted(stairs, seconds[same], side="right") - 1]
        running = np.minimum.accumulate(memory[same])
        quicker = np.concatenate(([np.inf], running[:-1]))
        alive = same[memory[same] < np.minimum(before, quicker)]
        kept.append(alive)
        stairs = np.concatenate((stairs, seconds[alive]))
        sort = np.argsort(stairs, kind="stable")
        least = np.minimum.accumulate(np.concatenate((least, memory[alive]))[sort])
        stairs = stairs[sort]
    return np.concatenate(kept)
