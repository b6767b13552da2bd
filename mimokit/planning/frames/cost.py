"""What a frame costs an encoder: a * patches + b * patches^2, and a constant if need be."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mimokit.units import shown


@dataclass(frozen=True)
class FrameCost:
    """The time of an encoder as a function of the patches that attend to each other.

    Patches of different frames do not attend to each other, as in Qwen2-VL (arXiv 2409.12191).
    Where those of all frames of a video do, the video counts as one frame.

    Attributes:
        per_patch: seconds (or any other unit) per patch: products with weights.
        per_pair: per pair of patches that attend to each other.
        per_frame: per frame of any size: all of it where an encoder pads frames to one size.
    """

    per_patch: float = 1.0
    per_pair: float = 0.0
    per_frame: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (np.isfinite(value) and value >= 0):
                raise ValueError(f"{name} of a frame's cost is {value:g}; it is finite and >= 0.")
        if not any(vars(self).values()):
            raise ValueError(
                "A frame's cost is 0 per patch, per pair and per frame; give one of them."
            )

    def loads(self, patches: Any) -> np.ndarray:
        """Return the load of frames, from the patches of each: [frames]."""
        size = np.asarray(patches, dtype=np.float64)
        return self.per_frame + self.per_patch * size + self.per_pair * size * size


PATCHES = FrameCost()
"""A frame costs its patches, as the reference planner supposes."""


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
