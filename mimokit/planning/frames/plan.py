"""Which rank encodes which frame: decided from the loads of all frames, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mimokit.planning.frames.few_sizes import packed_by_contents
from mimokit.planning.frames.partition import (
    Partition,
    best_partition,
    longest_first,
    lower_bound,
    moved_from_home,
    refined,
)
from mimokit.units import counted, shown

if TYPE_CHECKING:
    from scipy.sparse import csr_array

WORTH_PROGRAM = 0.005
"""Relative distance from the lower bound from which on frames of few sizes are worth a program."""

Numbers: TypeAlias = "Sequence[float] | np.ndarray"


@dataclass(frozen=True)
class FramePlan:
    """The rank of every frame.

    Attributes:
        assignment: [frames], the rank that encodes each.
        load_per_rank: [ranks], sum of the loads of its frames.
        loads: [frames].
        home: [frames], the rank that holds each; None if frames have no home.
    """

    assignment: tuple[int, ...]
    load_per_rank: tuple[float, ...]
    loads: np.ndarray = field(repr=False, compare=False)
    home: np.ndarray | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(
        cls, assignment: Numbers, loads: Numbers, num_ranks: int, home: Numbers | None = None
    ) -> FramePlan:
        """Return the plan of an assignment that was made elsewhere.

        Raises:
            ValueError: the assignment does not give every frame exactly one of the ranks, or see
                `plan_frames`.
        """
        ranks, sizes = check_ranks(num_ranks), check_loads(loads)
        rank_of = check_homes("assignment", assignment, len(sizes), ranks)
        sums = np.bincount(rank_of, weights=sizes, minlength=ranks)
        where = None if home is None else check_homes("home", home, len(sizes), ranks)
        return cls(tuple(rank_of.tolist()), tuple(sums.tolist()), sizes, where)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.load_per_rank)

    @property
    def makespan(self) -> float:
        """Load of the most loaded rank, for which all others wait."""
        return max(self.load_per_rank)

    @property
    def imbalance(self) -> float:
        """Makespan over max(mean load of a rank, largest frame); 1 is the best possible."""
        least = max(sum(self.load_per_rank) / self.num_ranks, float(self.loads.max(initial=0.0)))
        return self.makespan / least if least else 1.0

    @property
    def moved(self) -> float:
        """Share of the load that a rank encodes which is not its home; 0 without homes."""
        total = float(self.loads.sum())
        if self.home is None or not total:
            return 0.0
        return float(self.loads[self.home != np.asarray(self.assignment)].sum()) / total

    def traffic(self, sizes: Numbers | None = None) -> np.ndarray:
        """Return [home rank, encoding rank]: the sizes of the frames between them.

        Args:
            sizes: [frames], patches say. None: the loads.

        Raises:
            ValueError: if the frames have no home.
        """
        return np.asarray(self.traffic_of_pairs(sizes).toarray())

    def traffic_of_pairs(self, sizes: Numbers | None = None) -> csr_array:
        """Return what `traffic` does, of the pairs of ranks between which there is any."""
        from scipy.sparse import csr_array

        if self.home is None:
            raise ValueError("The frames have no home ranks; plan with home=… to see what travels.")
        amounts = self.loads if sizes is None else np.asarray(sizes)
        places = (self.home, np.asarray(self.assignment, dtype=np.int64))
        return csr_array((amounts, places), shape=(self.num_ranks, self.num_ranks), dtype=float)


def plan_frames(
    loads: Numbers,
    num_ranks: int,
    *,
    home: Numbers | None = None,
    tolerance: float = 0.0,
    ranks_per_node: int | None = None,
) -> FramePlan:
    """Assign frames so that the most loaded rank has little more than the mean.

    LPT and MultiFit (Coffman, Garey and Johnson 1978) are each refined by exchanges of two ranks,
    and the best is taken; no plan is worse than LPT. With homes, frames stay where they are as far
    as possible: from their homes, the moves and swaps are taken that lower what ranks have too much
    by the most per load that travels.

    Args:
        loads: [frames], any unit.
        home: [frames], the rank that holds each.
        tolerance: with homes, ranks may exceed the lowest possible makespan by this share, so that
            less travels; also beyond LPT.
        ranks_per_node: with homes, frames rather move within groups of so many ranks.

    Raises:
        ValueError: a load is negative or not finite, ranks is 0, a home is not a rank, or a
            share is not in its range.
    """
    ranks, sizes = check_ranks(num_ranks), check_loads(loads)
    node = ranks if ranks_per_node is None else check_ranks(ranks_per_node, "ranks_per_node")
    node = min(node, ranks)
    if not 0 <= tolerance < np.inf:
        raise ValueError(f"tolerance is {tolerance:g}; it is a share: at least 0.")
    if home is None:
        return _plan(_ahead(best_partition(longest_first(sizes, ranks))), sizes, None)
    homes = check_homes("home", home, len(sizes), ranks)
    return _plan(_near_home(sizes, ranks, homes, tolerance, node), sizes, homes)


def _ahead(best: Partition) -> Partition:
    # The program takes tens of milliseconds, so that it is not for every step of a run. It finds
    # what exchanges do not where frames have few sizes and ranks few frames.
    bound = lower_bound(best.sizes, best.ranks)
    if best.makespan <= bound * (1 + WORTH_PROGRAM):
        return best
    packed = packed_by_contents(best, bound)
    return best if packed is None or packed.makespan >= best.makespan else packed


def _near_home(
    sizes: np.ndarray, ranks: int, homes: np.ndarray, tolerance: float, node: int
) -> Partition:
    lpt = longest_first(sizes, ranks)
    best = best_partition(lpt)
    goal = max(best.makespan, lower_bound(lpt.sizes, ranks) * (1 + tolerance))
    near = moved_from_home(lpt, homes[lpt.order], goal, node)
    if near.makespan <= goal:
        return near
    near = refined(near, goal)
    if near.makespan <= max(goal, lpt.makespan):
        return near
    return _relabelled(best, homes[lpt.order])


def _relabelled(partition: Partition, homes: np.ndarray) -> Partition:
    from scipy.optimize import linear_sum_assignment

    ranks = partition.ranks
    stays = np.bincount(
        partition.rank_of * ranks + homes, weights=partition.sizes, minlength=ranks**2
    )
    _, names = linear_sum_assignment(stays.reshape(ranks, ranks), maximize=True)
    return partition.with_ranks(np.asarray(names, dtype=np.int64)[partition.rank_of])


def _plan(partition: Partition, sizes: np.ndarray, homes: np.ndarray | None) -> FramePlan:
    assignment = tuple(partition.assignment().tolist())
    return FramePlan(assignment, tuple(partition.totals.tolist()), sizes, homes)


def check_loads(loads: Any) -> np.ndarray:
    """Return loads as float64; raise `ValueError` unless they are finite numbers of 0 or more."""
    try:
        sizes = np.array(loads, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The loads of frames are {shown(loads)}; give one number for each frame."
        ) from error
    if sizes.ndim != 1:
        raise ValueError(
            f"The loads of frames have {counted(sizes.ndim, 'dimension')}; give one number for "
            "each frame."
        )
    wrong = ~np.isfinite(sizes) | (sizes < 0)
    if wrong.any():
        frame = int(wrong.argmax())
        raise ValueError(
            f"Frame {frame} has a load of {sizes[frame]:g}; a load is finite and >= 0."
        )
    return sizes


def check_ranks(number: Any, name: str = "num_ranks") -> int:
    """Return a number of ranks; raise `ValueError` unless it is a whole number above 0."""
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
        raise ValueError(f"{name} is {shown(number)}; frames need at least 1 rank.")
    return int(number)


def check_homes(name: str, homes: Any, frames: int, ranks: int) -> np.ndarray:
    """Return the rank of every frame as int64; raise `ValueError` unless each has one."""
    rank_of = np.asarray(homes)
    if rank_of.shape != (frames,):
        raise ValueError(
            f"The {name} of {counted(frames, 'frame')} has shape {rank_of.shape}; give one rank "
            "for each frame."
        )
    if frames and rank_of.dtype.kind not in "iu":
        raise ValueError(f"The {name} of frames is {shown(homes)}; give whole numbers of ranks.")
    wrong = (rank_of < 0) | (rank_of >= ranks)
    if wrong.any():
        frame = int(wrong.argmax())
        raise ValueError(
            f"The {name} of frame {frame} is rank {rank_of[frame]}; the ranks are 0 to {ranks - 1}."
        )
    return rank_of.astype(np.int64)
