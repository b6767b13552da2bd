"""The transformer configuration that language model and encoders share."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch

from mimokit.config import ModuleArchitecture, ModuleParallelismConfig
from mimokit.engine.megatron import TransformerConfig

# What a process without Megatron's CUDA extensions cannot run.
_NO_FUSED_KERNELS: dict[str, Any] = {
    "bias_dropout_fusion": False,
    "bias_activation_fusion": False,
    "masked_softmax_fusion": False,
    "gradient_accumulation_fusion": False,
}


@dataclass(frozen=True)
class StagePart:
    """Which part of a module a pipeline stage holds.

    Attributes:
        first: it holds the embedding.
        last: it holds what comes after the layers.
    """

    first: bool
    last: bool


WHOLE = StagePart(first=True, last=True)


def transformer_config(
    architecture: ModuleArchitecture, parallelism: ModuleParallelismConfig
) -> TransformerConfig:
    """Return Megatron's configuration of one module, in fp32 and without dropout.

    `use_cpu_initialization` draws every full weight and then cuts it, so that one seed gives one
    model at any tensor parallel size. `calculate_per_token_loss` makes Megatron's DDP sum
    gradients, which are divided by the global token count afterwards: the only rule under which
    the result does not depend on the data parallel sizes.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of CUDA graph settings nobody made
        return TransformerConfig(
            num_layers=architecture.num_layers,
            hidden_size=architecture.hidden_size,
            ffn_hidden_size=architecture.feed_forward_size,
            num_attention_heads=architecture.num_attention_heads,
            tensor_model_parallel_size=parallelism.tensor_parallel,
            pipeline_model_parallel_size=parallelism.pipeline_parallel,
            context_parallel_size=parallelism.context_parallel,
            mrope_section=architecture.mrope_section,
            use_cpu_initialization=True,
            calculate_per_token_loss=True,
            params_dtype=torch.float32,
            pipeline_dtype=torch.float32,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            **_NO_FUSED_KERNELS,
        )
