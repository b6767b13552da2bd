"""Megatron-Core's globals: its memory buffer, its random states, its caches."""

import torch
from megatron.core import parallel_state
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import YarnRotaryEmbedding
from megatron.core.tensor_parallel import random as _random
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler

from mimokit.cluster.rank import on_leave


def ensure_memory_buffer() -> None:
    """Create the buffer of attention scores, as `initialize_model_parallel` is not called."""
    if parallel_state._GLOBAL_MEMORY_BUFFER is None:
        parallel_state._set_global_memory_buffer()


def use_tracker(tracker: object) -> None:
    """Have Megatron take random states from `tracker` instead of its `CudaRNGStatesTracker`."""
    _random._CUDA_RNG_STATE_TRACKER = tracker
    _random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True


def forget_rotary_embeddings() -> None:
    """Empty Megatron's cache of rotary embeddings, which keeps 32 modules and their groups alive.

    `RotaryEmbedding.forward` is an `lru_cache` with the module among its keys.
    """
    RotaryEmbedding.forward.cache_clear()
    YarnRotaryEmbedding.forward.cache_clear()


def scale_auxiliary_losses(scale: float) -> None:
    """Multiply the gradients of auxiliary losses of experts by the scale of the loss."""
    MoEAuxLossAutoScaler.set_loss_scale(torch.tensor(scale))


def _forget_world() -> None:
    """Reset Megatron's globals, so that the next world of this process finds none."""
    MoEAuxLossAutoScaler.main_loss_backward_scale = None
    forget_rotary_embeddings()
    had_buffer = parallel_state._GLOBAL_MEMORY_BUFFER is not None
    parallel_state.destroy_model_parallel()
    if had_buffer:
        # It is created once per process, not per layout: leave an empty one.
        parallel_state._set_global_memory_buffer()


on_leave(_forget_world)
