"""Divides frames of few sizes among ranks: how many ranks have which contents is a small program.

The contents of a rank are a number of frames of each size. Ranks of equal contents differ in
nothing, so that a plan is the number of ranks for each contents (Gilmore and Gomory 1961).
"""

import itertools
from collections.abc import Iterator

import numpy as np

from mimokit.planning.frames.partition import Partition

MOST_SIZES, MOST_CONTENTS = 8, 20_000
"""Beyond them the program is not small."""
TRIES, NODES = 3, 500
"""Capacities above the bound of the linear program that are tried, and nodes of each search: they
bound the time in a way that is the same on every rank."""


def packed_by_contents(best: Partition, bound: float) -> Partition | None:
    """Return a partition of a lower makespan, if frames have few sizes and one is found.

    No partition has a makespan below `bound`.
    """
    sizes, wanted = np.unique(best.sizes, return_counts=True)
    if len(sizes) > MOST_SIZES or sizes[0] <= 0:
        return None
    contents = _contents(sizes[::-1], best.makespan)
    if contents is None:
        return None
    contents = contents[:, ::-1]
    totals = contents @ sizes
    capacities = np.unique(totals[(totals >= bound) & (totals < best.makespan * (1 - 1e-9))])
    first = _first_capacity(contents, totals, wanted, best.ranks, capacities, sizes[0])
    for capacity in capacities[first : first + TRIES]:
        chosen = contents[_full(totals, capacity, sizes[0])]
        numbers = _numbers(chosen, wanted, best.ranks)
        if numbers is not None:
            return best.with_ranks(_dealt(best.sizes, sizes, np.repeat(chosen, numbers, axis=0)))
    return None


def _contents(sizes: np.ndarray, most: float) -> np.ndarray | None:
    """Return all contents of at most a total, [contents, sizes], or None if there are too many."""
    each = _each_content(sizes.tolist(), most * (1 + 1e-12))
    contents = list(itertools.islice(each, MOST_CONTENTS + 1))
    return None if len(contents) > MOST_CONTENTS else np.array(contents, dtype=np.int64)


def _each_content(sizes: list[float], room: float) -> Iterator[tuple[int, ...]]:
    if not sizes:
        yield ()
        return
    for number in range(int(min(room // sizes[0], MOST_CONTENTS)) + 1):
        for rest in _each_content(sizes[1:], room - number * sizes[0]):
            yield (number, *rest)


def _full(totals: np.ndarray, capacity: float, smallest: float) -> np.ndarray:
    fits: np.ndarray = (totals <= capacity) & (totals + smallest > capacity)
    return fits


def _first_capacity(
    contents: np.ndarray,
    totals: np.ndarray,
    wanted: np.ndarray,
    ranks: int,
    capacities: np.ndarray,
    smallest: float,
) -> int:
    """Return the place of the lowest capacity at which a linear program needs no more ranks."""
    from scipy.optimize import linprog

    low, high = 0, len(capacities)
    while low < high:
        middle = (low + high) // 2
        chosen = contents[_full(totals, capacities[middle], smallest)]
        needed = linprog(np.ones(len(chosen)), A_ub=-chosen.T, b_ub=-wanted).fun
        if needed is not None and needed <= ranks + 1e-6:
            high = middle
        else:
            low = middle + 1
    return low


def _numbers(contents: np.ndarray, wanted: np.ndarray, ranks: int) -> np.ndarray | None:
    from scipy.optimize import LinearConstraint, milp

    each = np.ones(len(contents))
    solution = milp(
        0 * each,
        constraints=[LinearConstraint(contents.T, lb=wanted), LinearConstraint(each, ub=ranks)],
        integrality=each,
        options={"node_limit": NODES},
    ).x
    return None if solution is None else np.round(solution).astype(np.int64)


def _dealt(frames: np.ndarray, sizes: np.ndarray, per_rank: np.ndarray) -> np.ndarray:
    rank_of = np.empty(len(frames), dtype=np.int64)
    for place, size in enumerate(sizes):
        alike = np.flatnonzero(frames == size)
        rank_of[alike] = np.repeat(np.arange(len(per_rank)), per_rank[:, place])[: len(alike)]
    return rank_of
