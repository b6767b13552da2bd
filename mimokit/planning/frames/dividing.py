"""The planner's loop that divides the frames of two ranks again; see `placing.py`."""

from __future__ import annotations

from mimokit.planning.frames.placing import Floats, Integers


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
        one, other, division = high, -1, 0
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
            one = kicked
        good = goal + 0.25 * max(totals[high] - goal, 0.0)
        for candidate in range(ranks):
            partner = (begin + candidate) % ranks
            if kicked >= 0:
                if candidate > 1 or (kick and candidate > 0):
                    break
                partner = apart if kick or candidate == 1 else kicked
            together = totals[one] + totals[partner]
            if partner == one or together / 2 >= lowest:
                continue
            count = 0
            for rank in (one, partner):
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
        for rank in (one, other):
            frame = first[rank]
            while frame >= 0:
                members[count] = frame
                count += 1
                frame = following[frame]
            first[rank] = -1
            totals[rank] = 0.0
        for place in range(count - 1, -1, -1):
            frame = members[place]
            rank = one if (division >> place) & 1 else other
            rank_of[frame] = rank
            totals[rank] += sizes[frame]
            following[frame] = first[rank]
            first[rank] = frame
