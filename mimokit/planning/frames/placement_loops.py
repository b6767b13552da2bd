"""The planner's loops that place frames: LPT, the packing of MultiFit, dividing two ranks' again.

The loops in this file and `exchange_loops.py` are plain Python on lists for small problems and
compiled on arrays for large ones (see `partition.py`). They call only functions of
`CALLED_BY_LOOPS`. They read `sizes`, the load of each frame, and change in place what else they are
given: `rank_of`, the rank of each frame; `totals`, the load of each rank; and the members of ranks,
linked lists: `first[rank]` is one frame, `following[frame]` the next, -1 the end.
"""

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


def pack_frames(
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


def repartition(
    sizes: Floats,
    rank_of: Integers,
    totals: Floats,
    first: Integers,
    following: Integers,
    members: Integers,
    goal: float,
    kicks: int,
    least: float,
) -> None:
    """Lower the most loaded rank by dividing its frames and another rank's again, until the goal.

    Of all divisions it takes the first that brings both ranks most of the way to the goal, else the
    one with the lowest maximum. Pairs of ranks with more frames than `members` has room for are
    left out. Where no pair helps, two other ranks divide theirs in another way that keeps both
    below the maximum, and are tried again.

    Args:
        members: scratch, as long as the number of frames that two ranks may have.
        kicks: how often other ranks may be divided.
        least: load from which on they are.
    """
    ranks, random = len(totals), 12345
    begin, kicked, apart = 0, -1, -1
    while True:
        high = 0
        for rank in range(ranks):
            if totals[rank] > totals[high]:
                high = rank
        if totals[high] <= goal:
            return
        divided, other, division = high, -1, 0
        lowest = totals[high] * (1 - 1e-12)
        kick = kicked == -2
        if kick:  # two other ranks, in the order of a random division
            if kicks == 0 or totals[high] <= least:
                return
            kicks -= 1
            random = (random * 1103515245 + 12345) % 2147483648
            kicked = (random >> 8) % ranks
            random = (random * 1103515245 + 12345) % 2147483648
            apart = (random >> 8) % ranks
            if kicked in (apart, high) or apart == high:
                kicked = -2
                continue
            divided = kicked
        good = goal + 0.25 * max(totals[high] - goal, 0.0)
        for candidate in range(ranks):
            partner = (begin + candidate) % ranks
            if kicked >= 0:
                if candidate > 1 or (kick and candidate > 0):
                    break
                partner = apart if kick or candidate == 1 else kicked
            together = totals[divided] + totals[partner]
            if partner == divided or together / 2 >= lowest:
                continue
            count = 0
            for rank in (divided, partner):
                frame = first[rank]
                while frame >= 0 and count <= len(members):
                    if count < len(members):
                        members[count] = frame
                    count += 1
                    frame = following[frame]
            if count > len(members) or count < 2:
                continue
            # A Gray code: from one division to the next, one frame changes sides.
            kept, mask, divisions = sizes[members[0]], 1, 2 ** (count - 1)
            earliest = 1 + (random >> 12) % divisions
            for number in range(1, divisions):
                bit = 1
                while not (number >> (bit - 1)) & 1:
                    bit += 1
                if (mask >> bit) & 1:
                    kept -= sizes[members[bit]]
                else:
                    kept += sizes[members[bit]]
                mask ^= 1 << bit
                maximum = max(kept, together - kept)
                if maximum < lowest:
                    other, division = partner, mask
                    if not kick:
                        lowest = maximum
                    elif number >= earliest:
                        break
            if lowest <= good:
                break
        if other < 0:
            kicked = -2
            continue
        begin = other
        if not kick:
            kicked = -1
        count = 0
        for rank in (divided, other):
            frame = first[rank]
            while frame >= 0:
                members[count] = frame
                count += 1
                frame = following[frame]
            first[rank] = -1
            totals[rank] = 0.0
        for place in range(count - 1, -1, -1):
            frame = members[place]
            rank = divided if (division >> place) & 1 else other
            rank_of[frame] = rank
            totals[rank] += sizes[frame]
            following[frame] = first[rank]
            first[rank] = frame
