"""The only module that imports Megatron-Core: patches it for a CPU-only process, exports its names.

megatron-core 0.16.1 asks CUDA for its device even where it needs none. Without CUDA this module
answers instead; with CUDA it changes nothing. No other module of mimokit imports
`megatron`, assigns to anything that comes from it, or asks `sys.modules` for it.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from mimokit.cluster.rank import on_leave

CPU_ONLY = not torch.cuda.is_available()


class _IdleStream:
    """Stands for a CUDA stream in a process without CUDA, where work runs in order anyway."""

    def wait_stream(self, stream: object) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


def _answer_for_cuda() -> None:
    """Replace the functions of `torch.cuda` that Megatron calls on a CPU process."""
    stream = _IdleStream()
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.current_stream = lambda device=None: stream  # type: ignore[assignment,return-value]
    torch.cuda.default_stream = lambda device=None: stream  # type: ignore[assignment,return-value]


def _leave_eager(function: Callable[..., Any] | None = None, **_: Any) -> Callable[..., Any]:
    return function if function is not None else _leave_eager


@contextlib.contextmanager
def _quick_import() -> Iterator[None]:
    """Import Megatron quietly, and on a CPU without `torch.compile`.

    Decorating a few fused functions loads torch's whole compiler. It takes two thirds of the import
    time, for kernels that a CPU run does not use.
    """
    compiler = torch.compile
    if CPU_ONLY:
        torch.compile = _leave_eager  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.compile = compiler


if CPU_ONLY:
    _answer_for_cuda()

with _quick_import():
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.hyper_comm_grid import HyperCommGrid
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.mimo.config import MimoModelConfig
    from megatron.core.models.mimo.model.base import MimoModel
    from megatron.core.models.mimo.submodules.audio import AudioModalitySubmodules
    from megatron.core.models.mimo.submodules.base import ModalitySubmodules
    from megatron.core.models.mimo.submodules.vision import VisionModalitySubmodules
    from megatron.core.models.vision.multimodal_projector import MultimodalProjector
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.tensor_parallel import random as _random
    from megatron.core.tensor_parallel.cross_entropy import VocabParallelCrossEntropy
    from megatron.core.tensor_parallel.layers import (
        ColumnParallelLinear,
        RowParallelLinear,
        linear_with_grad_accumulation_and_async_allreduce,
    )
    from megatron.core.tensor_parallel.utils import VocabUtility
    from megatron.core.transformer.attention import SelfAttention
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.mlp import MLPSubmodules
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.spec_utils import ModuleSpec, build_module
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from megatron.core.transformer.transformer_block import TransformerBlock
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.transformer.transformer_layer import (
        TransformerLayer,
        get_transformer_layer_offset,
    )

if CPU_ONLY:
    # Suppresses advice for CUDA devices, which every rank would print.
    linear_with_grad_accumulation_and_async_allreduce.warned = True

# Megatron logs every group; the plan shows the same as its rank map.
logging.getLogger("absl").setLevel(logging.WARNING)


def ensure_memory_buffer() -> None:
    """Create the buffer into which Megatron's attention writes its scores.

    Usually `initialize_model_parallel` creates it, which mimokit does not call.
    """
    if parallel_state._GLOBAL_MEMORY_BUFFER is None:
        parallel_state._set_global_memory_buffer()


def seed_cuda_tracker(seed: int, tensor_rank: int) -> None:
    """Seed Megatron's own random states, on a process with CUDA."""
    _random.model_parallel_cuda_manual_seed(
        seed, tp_rank=tensor_rank, ep_rank=0, etp_rank=0, force_reset_rng=True
    )


def cuda_tracker_states() -> dict[str, torch.Tensor]:
    """Return name -> Megatron's own random states, on a process with CUDA."""
    states: dict[str, torch.Tensor] = _random.get_cuda_rng_tracker().get_states()
    return states


def use_tracker(tracker: object) -> None:
    """Have Megatron take random states from `tracker` instead of its `CudaRNGStatesTracker`."""
    _random._CUDA_RNG_STATE_TRACKER = tracker
    _random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True


def forget_rotary_embeddings() -> None:
    """Empty Megatron's cache of rotary embeddings, which keeps 32 modules and their groups alive.

    `RotaryEmbedding.forward` is an `lru_cache` with the module among its keys.
    """
    RotaryEmbedding.forward.cache_clear()


def _forget_world() -> None:
    """Reset Megatron's globals, so that the next world of this process finds none."""
    forget_rotary_embeddings()
    had_buffer = parallel_state._GLOBAL_MEMORY_BUFFER is not None
    parallel_state.destroy_model_parallel()
    if had_buffer:
        # It is created once per process, not per layout: leave an empty one.
        parallel_state._set_global_memory_buffer()


on_leave(_forget_world)

__all__ = [
    "CPU_ONLY",
    "AttnMaskType",
    "AudioModalitySubmodules",
    "ColumnParallelLinear",
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "GPTModel",
    "HyperCommGrid",
    "MLPSubmodules",
    "MegatronModule",
    "MimoModel",
    "MimoModelConfig",
    "ModalitySubmodules",
    "ModuleSpec",
    "MultimodalProjector",
    "ProcessGroupCollection",
    "RowParallelLinear",
    "SelfAttention",
    "TransformerBlock",
    "TransformerConfig",
    "TransformerLayer",
    "VisionModalitySubmodules",
    "VocabParallelCrossEntropy",
    "VocabUtility",
    "WrappedTorchNorm",
    "build_module",
    "ensure_memory_buffer",
    "forget_rotary_embeddings",
    "get_gpt_layer_local_spec",
    "get_transformer_layer_offset",
    "parallel_state",
    "seed_cuda_tracker",
    "tensor_parallel",
    "use_tracker",
]
