"""Which rows of patches every rank sends, encodes and gets back, for one plan of frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mimokit.planning.frames.cost import PATCHES, FrameCost
from mimokit.planning.frames.plan import FramePlan, plan_frames
from mimokit.units import counted

TOLERANCE = 0.01
"""Of runs: ranks may exceed the lowest possible makespan by this share, so that less travels."""


@dataclass(frozen=True)
class FrameSettings:
    """How frames are balanced; the same on all ranks.

    Attributes:
        merge_size: an encoder makes one token of merge_size^2 patches.
        split_time: encode the frames of a row separately, so that ranks can share a video. Only
            for encoders whose attention is per frame.
    """

    merge_size: int
    cost: FrameCost = PATCHES
    split_time: bool = True
    tolerance: float = TOLERANCE
    max_moved: float | None = None
    ranks_per_node: int | None = None


@dataclass(frozen=True)
class Moves:
    """Rows of patches of one rank, in the order in which they lie in a message.

    Attributes:
        splits: [ranks], patches to (or from) every rank.
    """

    frames: np.ndarray
    splits: tuple[int, ...]


@dataclass(frozen=True)
class FrameRoutes:
    """The frames of a batch over all ranks of a group.

    Attributes:
        grid: [frames, 3], frames, rows and columns of what is encoded as one row of a grid.
        patches: [frames].
        samples: [frames], which ranks hold it: those with the same number in `held`.
        held: [ranks], the number of the samples that a rank holds. Ranks of the same number hold
            the same frames, and each gets all of them back.
        source: [frames], the rank that sends it.
    """

    grid: np.ndarray
    patches: np.ndarray
    samples: np.ndarray
    held: tuple[int, ...]
    source: np.ndarray
    plan: FramePlan

    @property
    def target(self) -> np.ndarray:
        """[frames], the rank that encodes each."""
        return np.asarray(self.plan.assignment, dtype=np.int64)

    @property
    def all_at_home(self) -> bool:
        """Whether every rank encodes what it holds, and nothing travels there or back."""
        alone = len(set(self.held)) == len(self.held)
        return alone and bool((self.source == self.target).all())

    def of_rows(self) -> FrameRoutes:
        """Return the routes of what has one row for each frame, as if each had one patch."""
        return replace(self, patches=np.ones_like(self.patches))

    def own(self, rank: int) -> np.ndarray:
        """Return the frames that a rank holds, in the order in which it holds them."""
        return np.flatnonzero(self.samples == self.held[rank])

    def sends(self, rank: int) -> Moves:
        """Return what a rank sends, by the rank that encodes it."""
        frames = np.flatnonzero(self.source == rank)
        return self._moves(frames[np.argsort(self.target[frames], kind="stable")], self.target)

    def encodes(self, rank: int) -> Moves:
        """Return what a rank receives and encodes, by the rank that sends it."""
        frames = np.flatnonzero(self.target == rank)
        return self._moves(frames[np.argsort(self.source[frames], kind="stable")], self.source)

    def returns(self, rank: int) -> Moves:
        """Return what a rank sends back, by the rank that holds the sample."""
        if len(set(self.held)) == len(self.held):
            return self.encodes(rank)  # the rank that sent it is the only one that holds it
        encoded = self.encodes(rank).frames
        parts = [encoded[self.samples[encoded] == number] for number in self.held]
        splits = tuple(int(self.patches[part].sum()) for part in parts)
        return Moves(np.concatenate([encoded[:0], *parts]), splits)

    def regains(self, rank: int) -> Moves:
        """Return what a rank gets back, by the rank that has encoded it."""
        frames = self.own(rank)
        order = np.lexsort((frames, self.source[frames], self.target[frames]))
        return self._moves(frames[order], self.target)

    def patches_between(self) -> np.ndarray:
        """Return [sending rank, encoding rank]: patches that travel to be encoded."""
        ranks = len(self.held)
        pairs = self.source * ranks + self.target
        patches = np.bincount(pairs, weights=self.patches, minlength=ranks**2)
        return patches.astype(np.int64).reshape(ranks, ranks)

    def _moves(self, frames: np.ndarray, other: np.ndarray) -> Moves:
        sums = np.bincount(
            other[frames], weights=self.patches[frames], minlength=len(self.held)
        ).astype(np.int64)
        return Moves(frames, tuple(sums.tolist()))

    def rows(self, taken: np.ndarray, laid_out: np.ndarray, patches_per_row: int = 1) -> np.ndarray:
        """Return where the rows of frames are among those of others.

        Args:
            taken: frames, in the order in which their rows are wanted.
            laid_out: frames in the order in which their rows lie; contains all taken.

        Returns:
            [rows of the taken frames], numbers of rows.
        """
        counts = self.patches // patches_per_row
        begins = np.zeros(len(counts), dtype=np.int64)
        ends = np.cumsum(counts[laid_out])
        begins[laid_out] = ends - counts[laid_out]
        return spans(begins[taken], counts[taken])


def spans(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return begin, begin + 1, … of every span, one span after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(begins - ends + counts, counts) + np.arange(total)


def route_frames(
    grids: Sequence[np.ndarray], held: Sequence[int], settings: FrameSettings
) -> FrameRoutes:
    """Plan which rank encodes which frame of a batch.

    Ranks that hold the same samples encode a share each; every one of them gets all results.

    Args:
        grids: for each rank, [rows, 3]: frames, rows and columns of what it holds, in patches.
        held: for each rank, the number of its samples. Equal numbers: the same rows.

    Raises:
        ValueError: ranks of one number hold different rows, or a row cannot be merged to tokens.
    """
    check_grids(grids, held, settings)
    rows = [separate_frames(grid) if settings.split_time else grid for grid in grids]
    holders: dict[int, list[int]] = {}
    for rank, number in enumerate(held):
        holders.setdefault(number, []).append(rank)
    numbers = list(holders)
    grid = np.concatenate([rows[holders[number][0]] for number in numbers])
    counts = [len(rows[holders[number][0]]) for number in numbers]
    samples = np.repeat(numbers, counts)
    loads = settings.cost.loads(grid.prod(axis=1))
    ends = np.cumsum([0, *counts])
    home = np.concatenate(
        [
            _shares(loads[ends[place] : ends[place + 1]], holders[number])
            for place, number in enumerate(numbers)
        ]
    )
    plan = plan_frames(
        loads,
        len(held),
        home=home,
        tolerance=settings.tolerance,
        max_moved=settings.max_moved,
        ranks_per_node=settings.ranks_per_node,
    )
    # What a rank holds and encodes does not travel, whoever else holds it.
    target = np.asarray(plan.assignment, dtype=np.int64)
    has_it = np.asarray(held)[target] == samples
    source = np.where(has_it, target, home)
    return FrameRoutes(grid, grid.prod(axis=1), samples, tuple(held), source, plan)


def separate_frames(grid: np.ndarray) -> np.ndarray:
    """Return a grid with a row for each frame: (t, h, w) is t times (1, h, w).

    The patches of a row lie frame by frame, so they stay where they are.
    """
    separate = np.repeat(grid, grid[:, 0], axis=0)
    separate[:, 0] = 1
    return separate


def check_grids(grids: Sequence[np.ndarray], held: Sequence[int], settings: FrameSettings) -> None:
    """Raise the `ValueError` of `route_frames`, with the first rank, if grids are wrong."""
    if settings.merge_size < 1:
        raise ValueError(f"merge_size is {settings.merge_size}; it must be at least 1.")
    first: dict[int, int] = {}
    for rank, (grid, number) in enumerate(zip(grids, held, strict=True)):
        wrong = grid_problem(grid, settings)
        if wrong is not None:
            raise ValueError(f"On rank {rank} of the group, {wrong}")
        other = first.setdefault(number, rank)
        if not np.array_equal(grids[other], grid):
            raise ValueError(
                f"Ranks {other} and {rank} of the group hold the same samples (number {number}), "
                f"but {len(grids[other])} and {counted(len(grid), 'row')} of grids that differ; "
                "give them the same batch."
            )


def grid_problem(grid: np.ndarray, settings: FrameSettings) -> str | None:
    """Return what is wrong with a grid, as the rest of a sentence, or None."""
    merged = settings.merge_size**2
    if (grid < 1).any():
        row = int((grid < 1).any(axis=1).argmax())
        return f"row {row} of the grid is {grid[row].tolist()}; frames, rows and columns are >= 1."
    together = grid[:, 1:] if settings.split_time else grid
    uneven = together.prod(axis=1) % merged != 0
    if uneven.any():
        row = int(uneven.argmax())
        what = "a frame" if settings.split_time else "the row"
        return (
            f"row {row} of the grid is {grid[row].tolist()} (frames, rows, columns): {what} has "
            f"{int(together[row].prod())} patches, which are no multiple of {merged} "
            f"(merge_size {settings.merge_size}); pad the image."
        )
    return None


def _shares(loads: np.ndarray, ranks: Sequence[int]) -> np.ndarray:
    total = loads.sum()
    if not total:
        return np.full(len(loads), ranks[0], dtype=np.int64)
    middles = np.cumsum(loads) - loads / 2
    places = np.minimum((middles / total * len(ranks)).astype(np.int64), len(ranks) - 1)
    shares: np.ndarray = np.asarray(ranks, dtype=np.int64)[places]
    return shares
