"""SigLIP's pooling of an image's patches: a learned query attends to them, then a residual MLP."""

from dataclasses import replace

import torch

from mimokit.architecture.tokens import ImageGeometry
from mimokit.engine.megatron import TransformerConfig
from mimokit.engine.models.fusions import activation_of
from mimokit.engine.parallel.sequence import SliceNorm


class PoolingHead(torch.nn.Module):
    """Pools positions by attention (Zhai et al. 2023, arXiv 2303.15343); whole on every rank.

    Parameters have the names of Hugging Face's `SiglipMultiheadAttentionPoolingHead`.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width, inside = config.hidden_size, config.ffn_hidden_size
        self.probe = torch.nn.Parameter(torch.empty(1, 1, width))
        config.init_method(self.probe)
        self.attention = torch.nn.MultiheadAttention(width, config.num_attention_heads)
        plain = replace(config, sequence_parallel=False, normalization="LayerNorm")
        self.layernorm = SliceNorm(plain, width, eps=config.layernorm_epsilon)
        linear = torch.nn.Linear
        self.mlp = torch.nn.ModuleDict({"fc1": linear(width, inside), "fc2": linear(inside, width)})
        self._activation = activation_of(config)

    def forward(self, hidden: torch.Tensor, padding: torch.Tensor | None = None) -> torch.Tensor:
        """[positions, images, hidden] to [images, hidden].

        Args:
            padding: [images, positions], True at positions that an image does not have.
        """
        query = self.probe.expand(-1, hidden.shape[1], -1)
        pooled, _ = self.attention(query, hidden, hidden, padding, need_weights=False)
        inner = self._activation(self.mlp["fc1"](self.layernorm(pooled)))
        return (pooled + self.mlp["fc2"](inner))[0]  # type: ignore[no-any-return]


def row_head(config: TransformerConfig, geometry: ImageGeometry) -> PoolingHead | None:
    """Return what makes one row of an image, if it becomes one."""
    return PoolingHead(config) if geometry.one_row else None
