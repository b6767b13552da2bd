"""Fits what a frame costs an encoder to measured calls."""

from collections.abc import Sequence

import numpy as np

from mimokit.planning.frames import FrameCost
from mimokit.units import shown


def fit_cost(frames: Sequence[Sequence[int]], seconds: Sequence[float]) -> FrameCost:
    """Fit the cost of a frame to measured calls of an encoder.

    Least squares of relative errors, no coefficient negative. A time that no frame causes (launches
    say) is fitted as well and left out of the cost: every rank has it, whatever it encodes.

    Args:
        frames: for each call, the patches of its frames; `seconds` how long each took.

    Raises:
        ValueError: fewer than two calls of different sizes, a time that is not above 0, or times
            that do not depend on the frames.
    """
    from scipy.optimize import nnls

    times = np.asarray(seconds, dtype=np.float64)
    if len(frames) != len(times):
        raise ValueError(f"There are {len(frames)} calls but {len(times)} times; give one each.")
    if not (np.isfinite(times) & (times > 0)).all():
        raise ValueError(f"The times of calls are {shown(list(seconds))}; each must be above 0.")
    columns = np.array(
        [
            [np.sum(call), np.sum(np.square(np.asarray(call, dtype=float))), len(call), 1.0]
            for call in frames
        ]
    ).reshape(-1, 4)
    if len(np.unique(columns[:, :3], axis=0)) < 2:
        raise ValueError(
            "The calls have all the same frames; measure at least two calls of different sizes."
        )
    if len(set(columns[:, 2])) == 1:  # indistinguishable from a time that no frame causes
        columns[:, 2] = 0
    scale = columns.max(axis=0).clip(min=1)
    scaled, _ = nnls(columns / scale / times[:, None], np.ones(len(times)))
    per_patch, per_pair, per_frame, _ = (scaled / scale).tolist()
    if not per_patch + per_pair + per_frame:
        raise ValueError("The times do not rise with the frames; measure larger calls.")
    return FrameCost(per_patch, per_pair, per_frame)
