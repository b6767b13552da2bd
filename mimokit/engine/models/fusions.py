"""Which fused kernels of Megatron compute a module: those that compute what its network says.

Layouts and the one process that `verify` compares them with build modules alike, so both have them.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from mimokit.config import ModuleArchitecture
from mimokit.engine.activations import ACTIVATIONS
from mimokit.engine.megatron import AttnMaskType, TransformerConfig, fused_kernels
from mimokit.engine.models.attention import SequenceAttention
from mimokit.planning.execution import ModuleExecution

_TANH = "gelu_tanh"


def fused_options(network: ModuleArchitecture, weights: str) -> dict[str, Any]:
    """Return what of Megatron's configuration says which operations are one kernel.

    Its kernel of scores knows no window, and no mask but a causal one. Its sums of gradients of
    weights into their buffers (`gradient_accumulation_fusion`) would be added up once more where
    these are put off or sharded.
    """
    kernels = fused_kernels()
    activates = kernels.elementwise and _has_kernel(network)
    causal = network.vocab > 0 and network.attends_to_all  # encoders of pixels have no words
    options: dict[str, Any] = {
        "bias_activation_fusion": activates,
        "bias_dropout_fusion": kernels.elementwise,
        "masked_softmax_fusion": kernels.softmax and causal and weights != "fp32",
        "gradient_accumulation_fusion": False,
    }
    if activates and network.activation == _TANH:
        options["activation_func"] = F.gelu  # Megatron's kernels of that name are the approximation
    return options


def _has_kernel(network: ModuleArchitecture) -> bool:
    """Whether a bias and the activation of a network are one kernel; an exact GELU has none."""
    if network.num_moe_experts is not None and network.ffn_bias:
        return False
    if network.activation == "silu":
        return network.gated
    dense = network.num_moe_experts is None
    return network.activation == _TANH and dense and (network.gated or network.ffn_bias)


def activation_of(config: TransformerConfig) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the activation of the layers of a configuration as a function."""
    approximates = config.bias_activation_fusion and config.activation_func is F.gelu
    return ACTIVATIONS[_TANH] if approximates else config.activation_func


def core_attention(
    execution: ModuleExecution, network: ModuleArchitecture, mask_type: AttnMaskType
) -> Any:
    """Return the class that keeps no scores of pairs of positions; None: Megatron's own keeps them.

    Transformer Engine's has kernels for half precision, without masks of padding.
    """
    fused, half = fused_kernels(), execution.weights != "fp32"
    flash = fused.flash and half and not network.attention_dropout
    if not flash and execution.keeps_scores(network, mask_type == AttnMaskType.causal):
        return None
    own = bool(network.attention_dropout) or not network.attends_to_all
    unmasked = mask_type in (AttnMaskType.causal, AttnMaskType.no_mask)
    takes = unmasked and half and not execution.samples_in_row and not own
    return fused.attention if takes and fused.attention is not None else SequenceAttention
