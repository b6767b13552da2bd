"""Bytes of activations that one layer stores for the backward pass, per micro-batch and rank.

The formulas extend Korthikanti et al., arXiv 2205.05198, table 2, to grouped queries, SwiGLU and
experts. With s tokens, b samples, width h, a heads and t tensor-parallel ranks, the sum for GPT
with dropout equals theirs: s b h (10 + 24/t + 5 a s / (h t)), and s b h (34/t) with sequence
parallelism and without the attention core.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mimokit.architecture.parallel_sizes import (
    RECOMPUTE_FULL,
    RECOMPUTE_NONE,
    Numbers,
    ParallelSizes,
)
from mimokit.architecture.transformer import MixtureOfExperts, Transformer

HALF = 2
"""Bytes of a bf16 or fp16 number."""


def layer_activations(
    net: Transformer,
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    tokens: Numbers,
    seq: Numbers,
    *,
    flash: bool = True,
    dropout: bool = False,
    product_input: float = HALF,
) -> Numbers:
    """Return the bytes that one layer stores in its recompute mode.

    Args:
        net: the layers.
        moe: the experts of this layer, or None for a dense one.
        sizes: of the module.
        tokens: tokens of one micro-batch on one rank, b s / c.
        seq: tokens that a token can attend to, s.
        flash: flash attention, which stores no scores.
        dropout: dropout masks are stored, one byte per number.
        product_input: bytes per stored number of the inputs of matrix products.
    """
    kept = whole_layer(net, moe, sizes, tokens, dropout=dropout)
    kept = kept - tokens * (HALF - product_input) * product_inputs(net, moe, sizes)
    if not flash:
        kept = kept + np.where(
            np.equal(sizes.recompute, RECOMPUTE_NONE),
            attention_scores(net, sizes, tokens, seq, dropout=dropout),
            0,
        )
    return np.where(
        np.equal(sizes.recompute, RECOMPUTE_FULL), layer_input(net, sizes, tokens), kept
    )


def layer_input(net: Transformer, sizes: ParallelSizes, tokens: Numbers) -> Numbers:
    """Return the bytes of a layer's input: 2 s b h, or 2 s b h / t with sequence parallelism."""
    return HALF * net.hidden * tokens / sizes.sequence_shards


def whole_layer(
    net: Transformer,
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    tokens: Numbers,
    *,
    dropout: bool = False,
) -> Numbers:
    """Return the bytes of a layer without attention scores: 10 + 24/t for GPT with dropout."""
    outside = 4 * HALF * net.hidden + (2 * net.hidden if dropout else 0)
    inside, compressed = _attention_width(net)
    kept = outside / sizes.sequence_shards + HALF * (inside / sizes.tensor + compressed)
    if moe is None:
        kept = kept + HALF * _feed_forward_width(net, net.ffn) / sizes.tensor
    else:
        kept = kept + _expert_bytes(net, moe, sizes)
    return tokens * kept


def product_inputs(net: Transformer, moe: MixtureOfExperts | None, sizes: ParallelSizes) -> Numbers:
    """Return the numbers per token that only matrix products store: their inputs.

    They are normalized activations and outputs of the activation function. The input of the
    attention's output matrix is not counted, because the attention core stores it in 16 bits.
    """
    if moe is None:
        return 2 * net.hidden / sizes.sequence_shards + net.ffn / sizes.tensor
    routed = moe.top_k * (net.hidden + moe.ffn) + moe.shared_ffn
    return net.hidden / sizes.sequence_shards + routed / sizes.tensor


def attention_scores(
    net: Transformer, sizes: ParallelSizes, tokens: Numbers, seq: Numbers, *, dropout: bool
) -> Numbers:
    """Return the bytes of scores without flash attention: 5 a s^2 b / t with dropout."""
    each = 2 * HALF + 1 if dropout else 2 * HALF
    return each * net.heads * tokens * seq / sizes.tensor


def _attention_width(net: Transformer) -> tuple[int, int]:
    """Return the (sharded, unsharded) numbers per token that attention stores."""
    query, value = net.heads * net.qk_dim, net.heads * net.v_dim
    if net.mla is None:
        return query + net.kv_heads * (net.qk_dim + net.v_dim) + value, 0
    compressed = net.mla.q_rank + net.mla.kv_rank + net.mla.rope_dim
    return 2 * query + 2 * value, 2 * compressed


def _feed_forward_width(net: Transformer, ffn: int) -> int:
    """Return the numbers per token that a feed-forward layer stores: 2 f, or 3 f for SwiGLU."""
    return (3 if net.gated else 2) * ffn


def _expert_bytes(net: Transformer, moe: MixtureOfExperts, sizes: ParallelSizes) -> Any:
    """Return bytes per token: routed and shared experts, dispatched tokens, router scores.

    As in NVIDIA/Megatron-LM#6782, experts and dispatched tokens scale with top-k. Experts are not
    sharded by tensor parallelism; instead a rank takes 1/t of the tokens.
    """
    routed = moe.top_k * (_feed_forward_width(net, moe.ffn) + 2 * net.hidden)
    shared = _feed_forward_width(net, moe.shared_ffn)
    scores = 4 * moe.experts
    return (HALF * (routed + shared) + scores) / sizes.tensor
