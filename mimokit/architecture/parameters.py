"""The number of parameters of the parts of a layer.

Formulas: Megatron-LM `megatron/training/theoretical_memory_usage.py` for attention, feed-forward
layer and experts; biases, query-key norms and router biases added, so that totals are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from mimokit.architecture.transformer import (
    LatentAttention,
    MixtureOfExperts,
    Transformer,
)


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
    router = moe.experts * (net.hidden + moe.router_bias) + moe.shared_gate * net.hidden
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
    compressions = net.hidden * (mla.kv_rank + mla.rope_dim) + mla.kv_rank
    sharded = mla.kv_rank * net.heads * (mla.nope_dim + mla.v_dim)
    sharded += net.heads * mla.v_dim * net.hidden
    if mla.q_rank:
        compressions += mla.q_rank * (net.hidden + 1)
        sharded += mla.q_rank * query
    else:
        sharded += net.hidden * query
    return sharded, compressions
