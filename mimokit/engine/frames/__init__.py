"""Frame parallel inside a rank: the frames of a batch travel to the rank that encodes them, the
outputs back. Plain torch; it knows no model and no Megatron."""

from mimokit.engine.frames.dispatch import (
    FrameContext,
    FrameDispatchError,
    input_dispatch,
    output_dispatch,
)
from mimokit.engine.frames.wrap import wrap_vit_forward

__all__ = [
    "FrameContext",
    "FrameDispatchError",
    "input_dispatch",
    "output_dispatch",
    "wrap_vit_forward",
]
