"""A stack of transformer layers and its parameters.

Numbers of parameters: Megatron-LM `megatron/training/theoretical_memory_usage.py` for attention,
feed-forward layer and experts; biases, query-key norms and router biases added, so that totals are
exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from mimokit.config.layer_architecture import Activation, windowed_layers

Norm = Literal["rms", "layer"]

EPSILON = 1e-5
"""Megatron's `layernorm_epsilon`."""

INIT_STD = 0.02
"""Megatron's `init_method_std`."""


@dataclass(frozen=True)
class MixtureOfExperts:
    """Experts in place of the feed-forward layer.

    Attributes:
        shared_ffn: width inside the shared experts together; 0 for none.
        dense_layers: first layers that keep an ordinary feed-forward layer.
        router_bias: the router has one bias per expert (DeepSeek-V3's score correction).
        shared_gate: the shared expert has a separate gate (Qwen2-MoE).
        pre_softmax: the weights of a token's experts are shares of all experts, not of those that
            it visits.
    """

    experts: int
    top_k: int
    ffn: int
    shared_ffn: int = 0
    dense_layers: int = 0
    router_bias: bool = False
    shared_gate: bool = False
    pre_softmax: bool = False


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).

    Attributes:
        q_rank: width of the compressed query; 0 for a query that is not compressed.
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
        gated: SwiGLU with three matrices, otherwise two matrices around an activation.
        qkv_bias: biases of query and value; see `key_bias` for the key.
        key_bias: the key has a bias, too, if query and value have one.
        qk_norm: an RMSNorm over each head of query and key.
        window: tokens that most layers attend to at once; 0 for all.
        full_attention_layers: layers without a window if there is one: how many, or their numbers
            from 1.
        activation: inside the feed-forward layer; None: silu if it is gated, else gelu.
        init_std: standard deviation of matrices before training.
        dropout: share of the outputs of attention and feed-forward layer that are dropped.
        score_dropout: share of the attention probabilities that are dropped.
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
    full_attention_layers: int | tuple[int, ...] = 0
    activation: Activation | None = None
    epsilon: float = EPSILON
    init_std: float = INIT_STD
    dropout: float = 0.0
    score_dropout: float = 0.0
    moe: MixtureOfExperts | None = None
    mla: LatentAttention | None = None

    @cached_property
    def windowed_layers(self) -> frozenset[int]:
        """The numbers, from 1, of the layers with a window."""
        return (
            windowed_layers(self.layers, self.full_attention_layers) if self.window else frozenset()
        )

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


@dataclass(frozen=True)
class LayerParameters:
    """The parameters of one layer, by how parallelism shards them.

    Attributes:
        sharded: sharded by tensor parallelism: the matrices of attention and feed-forward layer, of
            shared experts too, and the biases of their inner sides.
        replicated: equal on every tensor-parallel rank: norms, router, biases of outputs,
            compressions of latent attention.
        expert: sharded by expert parallelism (and expert tensor parallelism): the routed experts.
        visited: of `expert`, those that one token visits.
    """

    sharded: int
    replicated: int
    expert: int = 0
    visited: int = 0

    @property
    def total(self) -> int:
        """All parameters of the layer."""
        return self.sharded + self.replicated + self.expert

    @property
    def active(self) -> int:
        """Parameters that one token visits."""
        return self.sharded + self.replicated + self.visited


def dense_layer(net: Transformer) -> LayerParameters:
    """Return the parameters of a layer with an ordinary feed-forward layer."""
    inner, outer = feed_forward(net.hidden, net.ffn, net.gated, net.ffn_bias)
    sharded, replicated = _attention(net)
    return LayerParameters(sharded + inner, replicated + outer + 2 * net.norm_parameters)


def expert_layer(net: Transformer, moe: MixtureOfExperts) -> LayerParameters:
    """Return the parameters of a layer with experts."""
    sharded, replicated = _attention(net)
    expert = sum(feed_forward(net.hidden, moe.ffn, net.gated, net.ffn_bias))
    if moe.shared_ffn:
        inner, outer = feed_forward(net.hidden, moe.shared_ffn, net.gated, net.ffn_bias)
        sharded, replicated = sharded + inner, replicated + outer
    router = moe.experts * (net.hidden + net.ffn_bias + moe.router_bias)
    router += moe.shared_gate * net.hidden
    return LayerParameters(
        sharded,
        replicated + router + 2 * net.norm_parameters,
        moe.experts * expert,
        moe.top_k * expert,
    )


def stack_parameters(net: Transformer) -> int:
    """Return the parameters of all layers, without a norm after them."""
    total = net.dense_layers * dense_layer(net).total
    if net.moe is not None:
        total += (net.layers - net.dense_layers) * expert_layer(net, net.moe).total
    return total


def active_stack_parameters(net: Transformer) -> int:
    """Return the parameters of all layers that one token visits."""
    total = net.dense_layers * dense_layer(net).active
    if net.moe is not None:
        total += (net.layers - net.dense_layers) * expert_layer(net, net.moe).active
    return total


def feed_forward(hidden: int, ffn: int, gated: bool, bias: bool) -> tuple[int, int]:
    """Return (sharded, replicated) parameters of a feed-forward layer."""
    inward = 2 if gated else 1
    return (inward + 1) * hidden * ffn + bias * inward * ffn, bias * hidden


def _attention(net: Transformer) -> tuple[int, int]:
    """Return (sharded, replicated) parameters of attention."""
    if net.mla is not None:
        return _latent_attention(net, net.mla)
    query, key = net.heads * net.head_dim, net.kv_heads * net.head_dim
    sharded = net.hidden * (2 * query + 2 * key)
    if net.qkv_bias:
        sharded += query + (1 + net.key_bias) * key
    return sharded, net.output_bias * net.hidden + net.qk_norm * 2 * net.head_dim


def _latent_attention(net: Transformer, mla: LatentAttention) -> tuple[int, int]:
    query = net.heads * (mla.nope_dim + mla.rope_dim)
    compressions = net.hidden * (mla.kv_rank + mla.rope_dim) + norm_parameters(
        net.norm, mla.kv_rank
    )
    compressions += net.output_bias * net.hidden
    sharded = mla.kv_rank * net.heads * (mla.nope_dim + mla.v_dim)
    sharded += net.heads * mla.v_dim * net.hidden
    if mla.q_rank:
        compressions += mla.q_rank * net.hidden + norm_parameters(net.norm, mla.q_rank)
        sharded += mla.q_rank * query
    else:
        sharded += net.hidden * query
    return sharded, compressions
