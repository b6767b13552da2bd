"""Activations that one layer keeps for the backward pass, per micro-batch and rank.

The table extends Korthikanti et al., arXiv 2205.05198, table 2, to grouped queries, SwiGLU and
experts. With s tokens, b samples, width h, a heads and t tensor-parallel ranks, the sum for GPT
with dropout equals theirs: s b h (10 + 24/t + 5 a s / (h t)), and s b h (34/t) with sequence
parallelism and without the attention core.
"""

from collections.abc import Collection

import numpy as np

from mimokit.architecture.feed_forward import DENSE, MixtureOfExperts
from mimokit.architecture.layer_work.saved_tensor import SavedTensor
from mimokit.architecture.transformer import Transformer
from mimokit.config.sizes import (
    RECOMPUTE_FULL,
    RECOMPUTE_NONE,
    Numbers,
    ParallelSizes,
)

HALF = 2
"""Bytes of a bf16 or fp16 number."""

_NORMS = frozenset({"layernorm"})


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
    part = moe or DENSE
    return (*tensors, *net.attention.saved(net, sizes), *part.saved(net, sizes))


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


def joining_activations(
    net: Transformer, sizes: ParallelSizes, tokens: Numbers, number: float, product_input: float
) -> Numbers:
    """Return the bytes that a layer of multi-token prediction stores outside its transformer layer.

    They are the inputs of its three norms and of the projection, which is twice as wide (Megatron's
    `MultiTokenPredictionLayer`). Full recompute stores another input.
    """
    kept = 3 * number + 2 * product_input
    each = np.where(np.equal(sizes.recompute, RECOMPUTE_FULL), number, kept)
    return each * net.hidden * tokens / sizes.sequence_shards


def _unfused_attention(
    net: Transformer, sizes: ParallelSizes, tokens: Numbers, seq: Numbers, number: float
) -> Numbers:
    """Return the bytes that an attention core keeps beside its inputs and its output.

    They are the softmax of the scores, with dropout its mask and its result as well, 5 a s^2 b / t,
    and key and value once per head where heads share them.
    """
    each = number + (net.score_dropout > 0) * (1 + number)
    scores = each * net.heads * tokens * seq / sizes.tensor
    shared = net.heads - net.kv_heads
    copies = number * shared * (net.qk_dim + net.v_dim) * tokens / sizes.tensor
    return scores + copies
