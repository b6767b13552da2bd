"""A stack of transformer layers and its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mimokit.config.layer_architecture import Activation

Norm = Literal["rms", "layer"]

EPSILON = 1e-5
"""Megatron's `layernorm_epsilon`."""

INIT_STD = 0.02
"""Megatron's `init_method_std`."""


@dataclass(frozen=True)
class MixtureOfExperts:
    """Experts in place of the feed-forward layer.

    Attributes:
        experts: routed experts of one layer.
        top_k: experts that each token visits.
        ffn: width inside one routed expert.
        shared_ffn: width inside the shared experts together; 0 for none.
        dense_layers: first layers that keep an ordinary feed-forward layer.
        router_bias: the router has one bias per expert (DeepSeek-V3's score correction).
        shared_gate: the shared expert has a separate gate (Qwen2-MoE).
    """

    experts: int
    top_k: int
    ffn: int
    shared_ffn: int = 0
    dense_layers: int = 0
    router_bias: bool = False
    shared_gate: bool = False


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).

    Attributes:
        q_rank: width of the compressed query; 0 for a query that is not compressed.
        kv_rank: width of the compressed key and value.
        nope_dim: dimensions of a head's query and key without positions.
        rope_dim: dimensions of a head's query and key with rotary positions.
        v_dim: dimensions of a head's value.
    """

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int


@dataclass(frozen=True)
class Transformer:
    """Equal layers, except that the first layers of a mixture of experts may be dense.

    Attributes:
        hidden: width of an activation.
        heads: query heads.
        ffn: width inside a dense feed-forward layer.
        gated: SwiGLU with three matrices, otherwise two matrices around an activation.
        norm: RMSNorm (one vector) or LayerNorm (two).
        qkv_bias: biases of query and value; see `key_bias` for the key.
        key_bias: the key has a bias, too, if query and value have one.
        qk_norm: an RMSNorm over each head of query and key.
        causal: a token attends to itself and earlier tokens only.
        window: tokens that most layers attend to at once; 0 for all.
        full_attention_layers: layers without a window if there is one.
        activation: inside the feed-forward layer; None: silu if it is gated, else gelu.
        epsilon: added to the variance in a norm.
        init_std: standard deviation of matrices before training.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool = True
    norm: Norm = "rms"
    qkv_bias: bool = False
    key_bias: bool = True
    output_bias: bool = False
    ffn_bias: bool = False
    qk_norm: bool = False
    causal: bool = True
    window: int = 0
    full_attention_layers: int = 0
    activation: Activation | None = None
    epsilon: float = EPSILON
    init_std: float = INIT_STD
    moe: MixtureOfExperts | None = None
    mla: LatentAttention | None = None

    @property
    def qk_dim(self) -> int:
        """Dimensions of a head's query and key."""
        return self.head_dim if self.mla is None else self.mla.nope_dim + self.mla.rope_dim

    @property
    def v_dim(self) -> int:
        """Dimensions of a head's value."""
        return self.head_dim if self.mla is None else self.mla.v_dim

    @property
    def dense_layers(self) -> int:
        """Layers with an ordinary feed-forward layer."""
        return self.layers if self.moe is None else self.moe.dense_layers

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm of the width of an activation."""
        return norm_parameters(self.norm, self.hidden)


def norm_parameters(norm: Norm, width: int) -> int:
    """Return the parameters of one norm: a scale, and for LayerNorm a shift."""
    return width if norm == "rms" else 2 * width
