"""Latent attention, and what stands in for its linear layer of Transformer Engine."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.extensions import transformer_engine
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.multi_latent_attention import (
    MLASelfAttention as MLASelfAttention,
)
from megatron.core.transformer.multi_latent_attention import (
    MLASelfAttentionSubmodules as MLASelfAttentionSubmodules,
)
from megatron.core.transformer.transformer_config import (
    MLATransformerConfig as MLATransformerConfig,
)
from megatron.core.transformer.transformer_config import TransformerConfig


class WholeLinear(torch.nn.Module):
    """A matrix without bias, the same on every rank; in place of `TELinear`."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: TransformerConfig,
        init_method: Callable[[torch.Tensor], object],
        **options: Any,
    ) -> None:
        super().__init__()
        drawn = torch.empty(output_size, input_size)
        init_method(drawn)
        self.weight = torch.nn.Parameter(drawn.to(config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the product, and None in place of a bias."""
        return self._forward_impl(input=hidden, weight=self.weight), None

    def _forward_impl(self, input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(input, weight)


def take_whole_linear() -> None:
    """Let latent attention know the class; without Transformer Engine it knows none of the kind.

    0.16 believes even so that the package is there, and asks for its class.
    """
    multi_latent_attention.Linear = WholeLinear
    multi_latent_attention.HAVE_TE = transformer_engine.HAVE_TE
