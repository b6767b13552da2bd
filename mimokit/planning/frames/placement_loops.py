"""The planner's loops that place frames: LPT, and the packing of MultiFit.

The loops in this file and `exchange_loops.py` are plain Python on lists for small problems and
compiled on arrays for large ones (see `partition.py`). They call only functions of
`CALLED_BY_LOOPS`. They read `sizes`, the load of each frame, and change in place what else they are
given: `rank_of`, the rank of each frame; `totals`, the load of each rank; and the members of ranks,
linked lists: `first[rank]` is one frame, `following[frame]` the next, -1 the end.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Floats: TypeAlias = Any
"""A list or a float64 array."""
Integers: TypeAlias = Any
"""A list or an int64 array."""


def place_longest_first(sizes: Floats, rank_of: Integers, totals: Floats, heap: Integers) -> None:
    """Give every frame, in this order, to the least loaded rank, the lowest on ties.

    Args:
        totals: zeros.
        heap: [ranks], 0, 1, 2, …; scratch.
    """
    ranks = len(heap)
    for frame in range(len(sizes)):
        rank = heap[0]
        rank_of[frame] = rank
        load = totals[rank] + sizes[frame]
        totals[rank] = load
        place = 0
        while True:
            child = 2 * place + 1
            if child >= ranks:
                break
            below = heap[child]
            if child + 1 < ranks:
                right = heap[child + 1]
                if totals[right] < totals[below] or (
                    totals[right] == totals[below] and right < below
                ):
                    below = right
                    child += 1
            if totals[below] > load or (totals[below] == load and below > rank):
                break
            heap[place] = below
            place = child
        heap[place] = rank


def pack(
    sizes: Floats, capacity: float, rank_of: Integers, room: Floats, ranks_by_room: Integers
) -> bool:
    """Give every frame to the fullest rank that has room for it; False if there is none.

    Args:
        sizes: descending.
        room: [ranks], scratch: what is left on ranks, ascending.
        ranks_by_room: [ranks], scratch: the ranks in that order.
    """
    ranks = len(room)
    for rank in range(ranks):
        room[rank] = capacity
        ranks_by_room[rank] = rank
    for frame in range(len(sizes)):
        size = sizes[frame]
        low, high = 0, ranks
        while low < high:
            middle = (low + high) // 2
            if room[middle] < size:
                low = middle + 1
            else:
                high = middle
        if low == ranks:
            return False
        left, rank = room[low] - size, ranks_by_room[low]
        rank_of[frame] = rank
        while low > 0 and room[low - 1] > left:
            room[low] = room[low - 1]
            ranks_by_room[low] = ranks_by_room[low - 1]
            low -= 1
        room[low] = left
        ranks_by_room[low] = rank
    return True


def link(rank_of: Integers, first: Integers, following: Integers) -> None:
    """Fill the lists of the members of every rank."""
    for rank in range(len(first)):
        first[rank] = -1
    for frame in range(len(rank_of) - 1, -1, -1):
        following[frame] = first[rank_of[frame]]
        first[rank_of[frame]] = frame
