"""Which rows of patches every rank sends, encodes and gets back, for one plan of frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mimokit.planning.frames.cost import PATCHES, FrameCost
from mimokit.planning.frames.plan import FramePlan, plan_frames

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
        source: [frames], the rank that holds it.
        ranks: of the group.
    """

    grid: np.ndarray
    patches: np.ndarray
    source: np.ndarray
    ranks: int
    plan: FramePlan

    @property
    def target(self) -> np.ndarray:
        """[frames], the rank that encodes each."""
        return np.asarray(self.plan.assignment, dtype=np.int64)

    @property
    def all_at_home(self) -> bool:
        """Whether every rank encodes what it holds, and nothing travels there or back."""
        return bool((self.source == self.target).all())

    def of_rows(self) -> FrameRoutes:
        """Return the routes of what has one row for each frame, as if each had one patch."""
        return replace(self, patches=np.ones_like(self.patches))

    def own(self, rank: int) -> np.ndarray:
        """Return the frames that a rank holds, in the order in which it holds them."""
        return np.flatnonzero(self.source == rank)

    def sends(self, rank: int) -> Moves:
        """Return what a rank sends, by the rank that encodes it; results come back so."""
        frames = self.own(rank)
        return self._moves(frames[np.argsort(self.target[frames], kind="stable")], self.target)

    def encodes(self, rank: int) -> Moves:
        """Return what a rank receives, encodes and sends back, by the rank that holds it."""
        frames = np.flatnonzero(self.target == rank)
        return self._moves(frames[np.argsort(self.source[frames], kind="stable")], self.source)

    def patches_between(self) -> np.ndarray:
        """Return [sending rank, encoding rank]: patches that travel to be encoded."""
        pairs = self.source * self.ranks + self.target
        patches = np.bincount(pairs, weights=self.patches, minlength=self.ranks**2)
        return patches.astype(np.int64).reshape(self.ranks, self.ranks)

    def _moves(self, frames: np.ndarray, other: np.ndarray) -> Moves:
        sums = np.bincount(other[frames], weights=self.patches[frames], minlength=self.ranks)
        return Moves(frames, tuple(sums.astype(np.int64).tolist()))

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


def route_frames(grids: Sequence[np.ndarray], settings: FrameSettings) -> FrameRoutes:
    """Plan which rank encodes which frame of a batch.

    Args:
        grids: for each rank, [rows, 3]: frames, rows and columns of what it holds, in patches.

    Raises:
        ValueError: a row cannot be merged to tokens; the message names the first rank.
    """
    if settings.merge_size < 1:
        raise ValueError(f"merge_size is {settings.merge_size}; it must be at least 1.")
    for rank, grid in enumerate(grids):
        wrong = grid_problem(grid, settings)
        if wrong is not None:
            raise ValueError(f"On rank {rank} of the group, {wrong}")
    rows = [separate_frames(grid) if settings.split_time else grid for grid in grids]
    grid, patches = np.concatenate(rows), np.concatenate(rows).prod(axis=1)
    home = np.repeat(np.arange(len(rows)), [len(own) for own in rows])
    plan = plan_frames(
        settings.cost.loads(patches),
        len(grids),
        home=home,
        tolerance=settings.tolerance,
        ranks_per_node=settings.ranks_per_node,
    )
    return FrameRoutes(grid, patches, home, len(grids), plan)


def separate_frames(grid: np.ndarray) -> np.ndarray:
    """Return a grid with a row for each frame: (t, h, w) is t times (1, h, w).

    The patches of a row lie frame by frame, so they stay where they are.
    """
    separate = np.repeat(grid, grid[:, 0], axis=0)
    separate[:, 0] = 1
    return separate


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
