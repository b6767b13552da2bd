"""The transformer configuration and the layer that language model and encoders share."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch

from mimokit.config import ModuleArchitecture
from mimokit.engine.megatron import (
    ModuleSpec,
    TransformerConfig,
    TransformerLayer,
    get_transformer_layer_offset,
)
from mimokit.planning.ranks import RankMap

# A process without Megatron's CUDA extensions cannot run these.
_NO_FUSED_KERNELS: dict[str, Any] = {
    "bias_dropout_fusion": False,
    "bias_activation_fusion": False,
    "masked_softmax_fusion": False,
    "gradient_accumulation_fusion": False,
}


@dataclass(frozen=True)
class StagePart:
    """The part of a module on a pipeline stage.

    Attributes:
        first: it includes the embedding.
        last: it includes the parts after the layers.
    """

    first: bool
    last: bool


WHOLE = StagePart(first=True, last=True)


def transformer_config(architecture: ModuleArchitecture, sizes: RankMap) -> TransformerConfig:
    """Return Megatron's configuration of one module, in fp32 and without dropout.

    Args:
        architecture: the network.
        sizes: its parallel sizes, as planned.

    `use_cpu_initialization` draws every full weight and then cuts it, so that one seed gives one
    model at any tensor parallel size. `calculate_per_token_loss` makes Megatron's DDP sum
    gradients, which are divided by the global token count afterwards. Only under this rule is the
    result independent of the data parallel sizes.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about CUDA graph settings that are not used
        return TransformerConfig(
            num_layers=architecture.num_layers,
            hidden_size=architecture.hidden_size,
            ffn_hidden_size=architecture.feed_forward_size,
            num_attention_heads=architecture.num_attention_heads,
            tensor_model_parallel_size=sizes.tensor_parallel,
            pipeline_model_parallel_size=sizes.pipeline_parallel,
            context_parallel_size=sizes.context_parallel,
            mrope_section=architecture.mrope_section,
            use_cpu_initialization=True,
            calculate_per_token_loss=True,
            params_dtype=torch.float32,
            pipeline_dtype=torch.float32,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            **_NO_FUSED_KERNELS,
        )


class SeededTransformerLayer(TransformerLayer):  # type: ignore[misc]
    """Megatron's `TransformerLayer`, initialized from a separate seed.

    A layer then has the same initial weights on every pipeline stage.

    Args:
        initial_seed: seed of the module; the layer adds its index in the whole module.
    """

    def __init__(
        self, config: TransformerConfig, *args: Any, initial_seed: int, **options: Any
    ) -> None:
        stage = options["pg_collection"].pp.rank()
        number = options["layer_number"] + get_transformer_layer_offset(config, None, stage)
        torch.manual_seed(initial_seed + number)
        super().__init__(config, *args, **options)


def seeded(layer_spec: ModuleSpec, initial_seed: int) -> ModuleSpec:
    """Return the spec of the same layer with a seed."""
    return ModuleSpec(
        module=SeededTransformerLayer,
        params={**(layer_spec.params or {}), "initial_seed": initial_seed},
        submodules=layer_spec.submodules,
    )
