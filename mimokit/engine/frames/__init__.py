"""Frame parallel inside a rank: the frames of a batch travel to the rank that encodes them, the
outputs back. Plain torch; it knows no model and no Megatron."""

from mimokit.engine.frames.dispatch import (
    FrameContext,
    FrameDispatchError,
    input_dispatch,
    output_dispatch,
)
from mimokit.engine.frames.patches import (
    VIT_FRAME_PARALLEL,
    FrameParallel,
    apply_patch,
    register,
    share_frames,
    wrap_vit_forward,
)

__all__ = [
    "VIT_FRAME_PARALLEL",
    "FrameContext",
    "FrameDispatchError",
    "FrameParallel",
    "apply_patch",
    "input_dispatch",
    "output_dispatch",
    "register",
    "share_frames",
    "wrap_vit_forward",
]
