"""Batches of frames by which planners are compared, and the slowest planner there is."""

import itertools

import numpy as np

FEW_SIZES = (
    (64, 96, 144, 196, 256, 384),
    (196, 256, 324, 400, 576, 784),
    (64, 144, 256, 400, 576, 1024),
    (720, 1024, 1200, 1536, 2040, 2304),
)
HARD_SIZES = (64, 112, 144, 264, 256, 448)
"""With seed 1, exchanges and MultiFit end 0.9 % above the lowest makespan."""
"""Patches of a frame in the few formats of some video data sets."""


def images(frames: int, seed: int = 0) -> np.ndarray:
    """Return patches of images of all sizes and shapes."""
    sides = np.random.default_rng(seed).integers(4, 40, (frames, 2))
    return (sides[:, 0] * 2) * (sides[:, 1] * 2)


def mixed(frames: int, seed: int = 0) -> np.ndarray:
    """Return patches of rows of a batch: half images, half videos of 2 to 16 small frames."""
    random = np.random.default_rng(seed)
    lengths = random.integers(2, 17, frames)
    return np.where(random.random(frames) < 0.5, images(frames, seed + 1), 256 * lengths)


def videos(frames: int, seed: int = 0, sizes: tuple[int, ...] = FEW_SIZES[0]) -> np.ndarray:
    """Return patches of frames in few formats."""
    return np.random.default_rng(seed).choice(sizes, frames)


def optimum(loads: list[int], ranks: int) -> int:
    """Return the lowest possible makespan, by trying all assignments of the first frame on."""
    best = sum(loads)
    for choice in itertools.product(range(ranks), repeat=len(loads)):
        totals = [0] * ranks
        for load, rank in zip(loads, choice, strict=True):
            totals[rank] += load
        best = min(best, max(totals))
    return best


def planted(ranks: int, frames: int, total: int, seed: int) -> list[int]:
    """Return frames that fill every rank exactly to a total, in some order."""
    random = np.random.default_rng(seed)
    counts = np.full(ranks, frames // ranks)
    counts[: frames % ranks] += 1
    cut = [
        np.diff([0, *sorted(random.choice(np.arange(1, total), count - 1, replace=False)), total])
        for count in counts
    ]
    return random.permutation(np.concatenate(cut)).tolist()


def fewest_ranks(loads: np.ndarray, capacity: float) -> float:
    """Return a number of ranks without which frames of few sizes cannot have a makespan.

    The relaxed cutting stock problem (Gilmore and Gomory 1961): as few ranks as possible, in
    fractions, of all the contents that a rank of the capacity can have.
    """
    from scipy.optimize import linprog

    sizes, wanted = np.unique(loads, return_counts=True)
    contents = np.array(_contents(tuple(sizes.tolist()), capacity))
    return float(linprog(np.ones(len(contents)), A_ub=-contents.T, b_ub=-wanted).fun)


def _contents(sizes: tuple[int, ...], capacity: float) -> list[tuple[int, ...]]:
    if not sizes:
        return [()]
    return [
        (number, *rest)
        for number in range(int(capacity // sizes[0]) + 1)
        for rest in _contents(sizes[1:], capacity - number * sizes[0])
    ]
