"""What a frame costs an encoder: a * patches + b * patches^2, and a constant if need be."""

from dataclasses import dataclass
from typing import Any

import numpy as np


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
