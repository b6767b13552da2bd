"""The planner's loops that move frames between two ranks; see `placement_loops.py`."""

from mimokit.planning.frames.placement_loops import Floats, Integers

MOST_TRIED = 200_000
"""Exchanges of two ranks after which the best one so far is taken."""


def most_and_least(totals: Floats) -> tuple[int, int]:
    """Return the ranks with the highest and the lowest total, the lowest rank on ties."""
    high = low = 0
    for rank in range(len(totals)):
        if totals[rank] > totals[high]:
            high = rank
        if totals[rank] < totals[low]:
            low = rank
    return high, low


def move(
    frame: int,
    source: int,
    target: int,
    sizes: Floats,
    rank_of: Integers,
    totals: Floats,
    first: Integers,
    following: Integers,
) -> None:
    """Move a frame from the list of one rank to the front of another's, and its size with it."""
    if first[source] == frame:
        first[source] = following[frame]
    else:
        before = first[source]
        while following[before] != frame:
            before = following[before]
        following[before] = following[frame]
    following[frame] = first[target]
    first[target] = frame
    rank_of[frame] = target
    totals[source] -= sizes[frame]
    totals[target] += sizes[frame]


CALLED_BY_LOOPS = (most_and_least, move)
"""What compiled loops call; see `partition.py`."""


def exchange(
    sizes: Floats,
    rank_of: Integers,
    totals: Floats,
    first: Integers,
    following: Integers,
    goal: float,
    steps: int,
    thorough: bool,
) -> None:
    """Lower the most loaded rank by moves and swaps with another, until it is at the goal.

    Of all exchanges of two ranks it takes the one that leaves the lower maximum. The partner is the
    least loaded rank or, if `thorough` and no exchange with it helps, the rank with the best one.
    """
    ranks = len(totals)
    for _ in range(steps):
        high, low = most_and_least(totals)
        if totals[high] <= goal:
            return
        least, leaving, coming, partner = 1e-12 * totals[high], -1, -1, -1
        for number in range(ranks + 1):
            other = low if number == 0 else number - 1
            if number == 1 and (partner >= 0 or not thorough):
                break
            gap = totals[high] - totals[other]
            if gap / 2 <= least:
                continue
            enough = 0.45 * gap  # of at most half of it
            frame = first[high]
            while frame >= 0 and least < enough:
                size = sizes[frame]
                better = min(size, gap - size)
                if better > least:
                    least, leaving, coming, partner = better, frame, -1, other
                swapped = first[other]
                while swapped >= 0 and least < enough:
                    difference = size - sizes[swapped]
                    better = min(difference, gap - difference)
                    if better > least:
                        least, leaving, coming, partner = better, frame, swapped, other
                    swapped = following[swapped]
                frame = following[frame]
        if partner < 0:
            return
        for frame, source, target in ((leaving, high, partner), (coming, partner, high)):
            if frame >= 0:
                move(frame, source, target, sizes, rank_of, totals, first, following)


def move_from_home(
    sizes: Floats,
    home: Integers,
    rank_of: Integers,
    totals: Floats,
    first: Integers,
    following: Integers,
    goal: float,
    node: int,
    thorough: bool,
) -> None:
    """Move as little as possible until every rank is at the goal.

    Each step takes from the most loaded rank. It takes the move or swap that lowers what both ranks
    have above the goal by the most per load that leaves its home: first with the least loaded rank
    of the same node, then with the least loaded of all, then with any.

    Args:
        home: [frames], the rank at which each starts.
        thorough: look at all ranks where the others do not help.
    """
    ranks = len(totals)
    while True:
        high, low = most_and_least(totals)
        near = begin = high - high % node
        for rank in range(begin, min(begin + node, ranks)):
            if totals[rank] < totals[near]:
                near = rank
        above = totals[high] - goal
        if above <= 0:
            return
        best, best_gain, leaving, coming, partner = 0.0, 0.0, -1, -1, -1
        for number in range(ranks + 2):
            other = near if number == 0 else low if number == 1 else number - 2
            if number > 0 and (partner >= 0 or (number > 1 and not thorough)):
                break
            room = goal - totals[other]
            if other == high:
                continue
            frame, tried = first[high], 0
            # A move that lowers by all that travels is taken at once: the largest come first.
            while frame >= 0 and best < 0.999 and (tried < MOST_TRIED or partner < 0):
                size = sizes[frame]
                travel = size
                if home[frame] != high:
                    travel = -size if home[frame] == other else 0.0
                swapped = -2
                while swapped != -1 and best < 0.999:
                    tried += 1
                    difference, extra = size, travel
                    if swapped >= 0:
                        back = sizes[swapped]
                        difference = size - back
                        if home[swapped] == other:
                            extra += back
                        elif home[swapped] == high:
                            extra -= back
                    gain = min(difference, above) - max(0.0, difference - max(room, 0.0))
                    if gain > 1e-9 * goal:
                        rate = gain / max(extra, 1e-9 * goal)
                        if rate > best * 1.000001 or (rate > best * 0.999999 and gain > best_gain):
                            best, best_gain = rate, gain
                            leaving, coming, partner = frame, swapped, other
                    swapped = first[other] if swapped == -2 else following[swapped]
                frame = following[frame]
        if partner < 0:
            return
        for frame, source, target in ((leaving, high, partner), (coming, partner, high)):
            if frame >= 0:
                move(frame, source, target, sizes, rank_of, totals, first, following)
