"""Frame parallel inside a rank: the frames of a batch travel to the rank that encodes them, the
outputs back. Plain torch; it knows no model and no Megatron."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.engine.frames.dispatch import FrameContext as FrameContext
    from mimokit.engine.frames.dispatch import FrameDispatchError as FrameDispatchError
    from mimokit.engine.frames.dispatch import input_dispatch as input_dispatch
    from mimokit.engine.frames.dispatch import output_dispatch as output_dispatch
    from mimokit.engine.frames.patches import VIT_FRAME_PARALLEL as VIT_FRAME_PARALLEL
    from mimokit.engine.frames.patches import FrameParallel as FrameParallel
    from mimokit.engine.frames.patches import apply_patch as apply_patch
    from mimokit.engine.frames.patches import register as register
    from mimokit.engine.frames.patches import share_frames as share_frames
    from mimokit.engine.frames.patches import wrap_vit_forward as wrap_vit_forward
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
