"""Activations that one layer keeps for the backward pass, per micro-batch and rank.

The table extends Korthikanti et al., arXiv 2205.05198, table 2, to grouped queries, SwiGLU and
experts. With s tokens, b samples, width h, a heads and t tensor-parallel ranks, the sum for GPT
with dropout equals theirs: s b h (10 + 24/t + 5 a s / (h t)), and s b h (34/t) with sequence
parallelism and without the attention core.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

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

Part = Literal["residual", "attention", "feed-forward"]

_NORMS, _MLP, _EXPERTS = (frozenset({name}) for name in ("layernorm", "mlp", "moe"))


@dataclass(frozen=True)
class SavedTensor:
    """An activation that a layer keeps.

    Attributes:
        part: of the layer; dispatched tokens and router scores belong to the feed-forward part.
        numbers: per token of the rank.
        bytes: of a number; None: as wide as activations.
        again: modules of Megatron's `recompute_modules` whose recomputation makes it again, so that
            it is not kept. What a module takes in is kept, and the output of the attention core,
            which the projection multiplies.
        only_product: only the gradient of a matrix needs it, so that it has the precision of
            products, and a frozen layer does not keep it. The output of the attention core is not
            among them, because the core keeps it.
    """

    part: Part
    numbers: Numbers
    bytes: int | None = None
    only_product: bool = False
    again: frozenset[str] = frozenset()


def saved_tensors(
    net: Transformer, moe: MixtureOfExperts | None, sizes: ParallelSizes
) -> tuple[SavedTensor, ...]:
    """Return what a layer keeps without recomputation, except the scores of unfused attention."""
    hidden = net.hidden / sizes.sequence_shards
    tensors = [
        SavedTensor("residual", 2 * hidden),  # the inputs of both norms
        SavedTensor("residual", hidden, only_product=True, again=_NORMS),  # attention's, normalized
        SavedTensor("residual", hidden, only_product=moe is None, again=_NORMS),
    ]
    if net.dropout:
        tensors.append(SavedTensor("residual", 2 * hidden, bytes=1))
    tensors += _attention(net, sizes)
    if moe is None:
        return (*tensors, *_feed_forward(net, net.ffn / sizes.tensor, _MLP))
    # As in NVIDIA/Megatron-LM#6782, experts and dispatched tokens scale with top-k. Experts are not
    # cut by tensor parallelism; instead a rank takes 1/t of the tokens.
    each = moe.top_k / sizes.tensor
    tensors += _feed_forward(net, each * moe.ffn, _EXPERTS, activated=_EXPERTS | {"moe_act"})
    tensors += _feed_forward(net, moe.shared_ffn / sizes.tensor, _EXPERTS | {"shared_experts"})
    dispatched = each * net.hidden
    tensors.append(SavedTensor("feed-forward", dispatched, only_product=True, again=_EXPERTS))
    tensors.append(SavedTensor("feed-forward", dispatched, again=_EXPERTS))
    scores = moe.experts / sizes.tensor
    tensors.append(SavedTensor("feed-forward", scores, bytes=4, again=_EXPERTS))
    return tuple(tensors)


def layer_activations(
    net: Transformer,
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    tokens: Numbers,
    seq: Numbers,
    *,
    flash: bool = True,
    number: float = HALF,
    product_input: float | None = None,
    without: Collection[str] = (),
) -> Numbers:
    """Return the bytes that one layer stores in its recompute mode.

    Args:
        tokens: tokens of one micro-batch on one rank, b s / c.
        seq: tokens that a token can attend to, s.
        flash: the attention core is fused and keeps no scores.
        number: bytes of an activation.
        product_input: bytes per stored number of the inputs of matrix products; None: likewise.
        without: modules that are recomputed, by Megatron's names.
    """
    product_input = number if product_input is None else product_input
    kept = tokens * sum(
        saved.numbers * (product_input if saved.only_product else saved.bytes or number)
        for saved in saved_tensors(net, moe, sizes)
        if saved.again.isdisjoint(without)
    )
    if not flash and "core_attn" not in without:
        inside = _unfused_attention(net, sizes, tokens, seq, number)
        kept = kept + np.where(np.equal(sizes.recompute, RECOMPUTE_NONE), inside, 0)
    layer_input = number * net.hidden * tokens / sizes.sequence_shards
    return np.where(np.equal(sizes.recompute, RECOMPUTE_FULL), layer_input, kept)


def whole_layer(
    net: Transformer,
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    tokens: Numbers,
    number: float = HALF,
    without: Collection[str] = (),
) -> Numbers:
    """Return the bytes of a layer that keeps everything: 10 + 24/t for GPT in 16 bits.

    Args:
        without: modules that are recomputed, by Megatron's names.
    """
    return tokens * sum(
        saved.numbers * (saved.bytes or number)
        for saved in saved_tensors(net, moe, sizes)
        if saved.again.isdisjoint(without)
    )


def _attention(net: Transformer, sizes: ParallelSizes) -> Iterator[SavedTensor]:
    query, value = net.heads * net.qk_dim / sizes.tensor, net.heads * net.v_dim / sizes.tensor
    if net.mla is None:
        keys = net.kv_heads * (net.qk_dim + net.v_dim) / sizes.tensor
        yield SavedTensor("attention", query + keys + value)
        return
    compressed = net.mla.q_rank + net.mla.kv_rank + net.mla.rope_dim
    yield SavedTensor("attention", 2 * query + value, again=frozenset({"mla_up_proj"}))
    yield SavedTensor("attention", value + 2 * compressed)


def _unfused_attention(
    net: Transformer, sizes: ParallelSizes, tokens: Numbers, seq: Numbers, number: float
) -> Numbers:
    """Return the bytes that an attention core keeps beside its inputs and its output.

    They are the softmax of the scores, with dropout its mask and its result as well, 5 a s^2 b / t,
    and key and value once per head where heads share them.
    """
    each = number + (net.score_dropout > 0) * (1 + number)
    scores = each * net.heads * tokens * seq / sizes.tensor
    shared = 0 if net.mla is not None else net.heads - net.kv_heads
    copies = number * shared * (net.qk_dim + net.v_dim) * tokens / sizes.tensor
    return scores + copies


def _feed_forward(
    net: Transformer,
    inner: Numbers,
    again: frozenset[str],
    activated: frozenset[str] | None = None,
) -> Iterator[SavedTensor]:
    """Yield the inputs of the activation function, two of SwiGLU, and its output.

    Args:
        again: modules whose recomputation makes all of them again.
        activated: the same of the output; None: likewise.
    """
    yield SavedTensor("feed-forward", (2 if net.gated else 1) * inner, again=again)
    output = again if activated is None else activated
    yield SavedTensor("feed-forward", inner, only_product=True, again=output)
