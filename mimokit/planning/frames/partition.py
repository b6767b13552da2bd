"""Divides numbers among ranks so that the largest sum is small."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from mimokit.planning.frames.exchange_loops import CALLED_BY_LOOPS, exchange, move_from_home
from mimokit.planning.frames.placement_loops import (
    link,
    pack_frames,
    place_longest_first,
    repartition,
)

INTERPRETED = 256
"""Frames up to which the loops run as plain Python: compiling them for the first time takes
seconds, and loading what was compiled before a good part of one."""
GOOD_ENOUGH = 3e-4
"""Relative distance from the lower bound at which no better plan is looked for."""
THOROUGH = 20_000
"""Frames up to which an exchange is looked for with all ranks."""
FEW_PER_RANK = 6
"""Frames per rank below which frames of two ranks are divided in all ways."""
MOST_TOGETHER, MOST_INTERPRETED = 12, 10
"""Frames of two ranks of which all divisions are tried: 2,048 and 512."""
KICKS, KICKS_INTERPRETED = 400, 30
"""How often other ranks are divided again to help the most loaded one."""
WORTH_KICKS = 1.004
"""They are as long as the most loaded rank is that far above the goal."""
PROBES = 7
"""Capacities that MultiFit tries: (Coffman, Garey and Johnson 1978) use as many."""


@dataclass
class Partition:
    """Frames in descending order of their size, and the rank of each.

    Attributes:
        order: [frames], the frames in that order; equal ones in the order in which they came.
        sizes: [frames], float64.
        rank_of: [frames], int64.
    """

    order: np.ndarray
    sizes: np.ndarray
    ranks: int
    rank_of: np.ndarray

    @property
    def totals(self) -> np.ndarray:
        """Sum of every rank, [ranks], added up in the order of the frames."""
        return np.bincount(self.rank_of, weights=self.sizes, minlength=self.ranks)

    @property
    def makespan(self) -> float:
        """The largest sum."""
        return float(self.totals.max())

    def with_ranks(self, rank_of: np.ndarray) -> Partition:
        """Return the same frames on other ranks."""
        return Partition(self.order, self.sizes, self.ranks, rank_of)

    def assignment(self) -> np.ndarray:
        """Return the rank of every frame in the order in which the frames came."""
        assignment = np.empty_like(self.rank_of)
        assignment[self.order] = self.rank_of
        return assignment


def sort_frames(loads: np.ndarray) -> np.ndarray:
    """Return the order of frames by descending load, then by ascending index."""
    largest = loads.max(initial=0.0)
    bits = max(len(loads) - 1, 1).bit_length()
    if largest < 2.0 ** (62 - bits) and bool((loads == np.floor(loads)).all()):
        # One sort of plain integers is several times as fast as a stable one of indices.
        keys = (int(largest) - loads.astype(np.int64) << bits) | np.arange(len(loads))
        keys.sort()
        return keys & ((1 << bits) - 1)
    return np.argsort(-loads, kind="stable")


def lower_bound(sizes: np.ndarray, ranks: int) -> float:
    """Return a makespan below which no plan can be.

    The largest of: the mean; for whole sizes the mean rounded up to a multiple of their common
    divisor; and for every k the k + 1 smallest of the k * ranks + 1 largest frames, of which some
    rank has k + 1.

    Sizes descend.
    """
    if not len(sizes):
        return 0.0
    bound = sizes.sum() / ranks
    largest = float(sizes[0])
    if largest < 2.0**53 and bool((sizes == np.floor(sizes)).all()):
        divisor = int(np.gcd.reduce(sizes.astype(np.int64))) or 1
        bound = math.ceil(bound / divisor * (1 - 1e-15)) * divisor
    crowded = np.arange(0, len(sizes), ranks)
    ends = np.concatenate([[0.0], np.cumsum(sizes)])
    together = ends[crowded + 1] - ends[crowded - np.arange(len(crowded))]
    return max(float(bound), float(together.max()))


def longest_first(loads: np.ndarray, ranks: int) -> Partition:
    """Return the partition of LPT: descending, each frame to the least loaded rank."""
    order = sort_frames(loads)
    sizes = loads[order]
    rank_of = np.empty(len(sizes), dtype=np.int64)
    arguments = _arguments(len(sizes), sizes, rank_of, [0.0] * ranks, list(range(ranks)))
    _loop(place_longest_first, len(sizes))(*arguments)
    return Partition(order, sizes, ranks, np.asarray(arguments[1], dtype=np.int64))


def best_partition(lpt: Partition) -> Partition:
    """Return the best of LPT and MultiFit, each refined by exchanges; never worse than LPT."""
    bound = lower_bound(lpt.sizes, lpt.ranks)
    goal = bound * (1 + GOOD_ENOUGH)
    best = lpt
    if best.makespan > goal:
        best = _better(best, refined(best, goal))
    if best.makespan > goal:
        packed = multifit(best, bound)
        if packed is not None:
            best = _better(best, _better(packed, refined(packed, goal)))
    return best


def refined(partition: Partition, goal: float) -> Partition:
    """Return a partition after exchanges of two ranks, down to a goal or a local optimum.

    Where ranks have few frames, the frames of two ranks are divided in all ways.
    """
    frames, ranks = len(partition.sizes), partition.ranks
    arguments = _arguments(
        frames,
        partition.sizes,
        partition.rank_of.copy(),
        partition.totals,
        np.empty(ranks, dtype=np.int64),
        np.empty(frames, dtype=np.int64),
    )
    _loop(link, frames)(arguments[1], arguments[3], arguments[4])
    _loop(exchange, frames)(*arguments, goal, 8 * ranks + 64, frames <= THOROUGH)
    if max(arguments[2]) > goal and frames < ranks * FEW_PER_RANK:
        most, kicks = MOST_TOGETHER, KICKS
        if frames <= INTERPRETED:
            most, kicks = MOST_INTERPRETED, KICKS_INTERPRETED
        (members,) = _arguments(frames, np.empty(most, dtype=np.int64))
        _loop(repartition, frames)(*arguments, members, goal, kicks, goal * WORTH_KICKS)
    return partition.with_ranks(np.asarray(arguments[1], dtype=np.int64))


def multifit(partition: Partition, bound: float) -> Partition | None:
    """Return the partition of the lowest capacity that best-fit decreasing can pack, if any.

    The capacity lies between a lower bound and the makespan of what is there already.
    """
    frames, ranks = len(partition.sizes), partition.ranks
    arguments = _arguments(
        frames,
        partition.sizes,
        np.empty(frames, dtype=np.int64),
        np.empty(ranks),
        np.empty(ranks, dtype=np.int64),
    )
    low, high, packed = bound, partition.makespan, None
    capacity = bound
    for _ in range(PROBES):
        if _loop(pack_frames, frames)(arguments[0], capacity, *arguments[1:]):
            packed, high = np.array(arguments[1], dtype=np.int64), capacity
        else:
            low = capacity
        capacity = (low + high) / 2
        if high <= low * (1 + GOOD_ENOUGH):
            break
    return None if packed is None else partition.with_ranks(packed)


def moved_from_home(lpt: Partition, home: np.ndarray, goal: float, node: int) -> Partition:
    """Return the partition that starts from the frames' homes and moves as little as it needs.

    Args:
        home: [frames], the rank of every frame, in the order of the partition.
        goal: largest load of a rank, where that can be reached.
        node: ranks per node, within which moves are preferred.
    """
    frames, ranks = len(lpt.sizes), lpt.ranks
    start = lpt.with_ranks(home.copy())
    arguments = _arguments(
        frames,
        start.sizes,
        home,
        start.rank_of,
        start.totals,
        np.empty(ranks, dtype=np.int64),
        np.empty(frames, dtype=np.int64),
    )
    _loop(link, frames)(arguments[2], arguments[4], arguments[5])
    _loop(move_from_home, frames)(*arguments, goal, node, frames <= THOROUGH)
    return start.with_ranks(np.asarray(arguments[2], dtype=np.int64))


def _better(first: Partition, other: Partition) -> Partition:
    return other if other.makespan < first.makespan else first


def _arguments(frames: int, *arrays: Any) -> list[Any]:
    """Return lists for loops that are interpreted, arrays for those that are compiled."""
    if _interpreted(frames):
        return [np.asarray(array).tolist() for array in arrays]
    return [np.ascontiguousarray(array) for array in arrays]


def _loop(function: Callable[..., Any], frames: int) -> Callable[..., Any]:
    return function if _interpreted(frames) else _compiled(function)


def _interpreted(frames: int) -> bool:
    return frames <= INTERPRETED or find_spec("numba") is None


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # Imported here, so that planning small problems does not load numba. It keeps what it compiles
    # next to the file or in the user's cache folder; where neither can be written, the loop is
    # compiled in every process.
    import numba

    _let_loops_call()
    try:
        return numba.njit(cache=True)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder that can be written
        return numba.njit(function)  # type: ignore[no-any-return]


@functools.cache
def _let_loops_call() -> None:
    from numba.extending import register_jitable

    for function in CALLED_BY_LOOPS:
        register_jitable(function)
