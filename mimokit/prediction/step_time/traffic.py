"""Seconds of what moves through memory between products: norms, casts, permutation, gradients."""

from collections.abc import Iterator, Mapping

import numpy as np

from mimokit.architecture.feed_forward import MixtureOfExperts
from mimokit.architecture.transformer import layer_parameters
from mimokit.config.sizes import Numbers
from mimokit.prediction.step_time.constants import value
from mimokit.prediction.step_time.layer_input import LayerInput
from mimokit.prediction.step_time.system import System
from mimokit.prediction.step_time.terms import Term, TimePiece, added

FUSED_KERNELS, UNFUSED_KERNELS = 12, 25
"""Kernels of a dense layer's forward pass, of matrix products 4 (counted from Megatron's layer: two
norms, two rotations, attention, activation, two residuals)."""
CAST_KERNELS: Mapping[str, int] = {"fp8": 8, "mxfp8": 12, "nvfp4": 16}
"""Kernels that cast the inputs of the four products: 2 each, with scales 3, with a transform 4."""
EXPERT_KERNELS, UNFUSED_EXPERT_KERNELS = 27, 40
"""Kernels that routing, permutation and dispatch add, apart from those per expert."""
SHARDED_BYTES = 10
"""Bytes moved per parameter and micro-batch if weights are sharded: a cast after each of two
gathers (4 each), and the gradient read to be sent, which the product writes."""
BIAS_PASSES, BIAS_KERNELS = 14, 3
"""Times that a dispatched token crosses memory for the biases of experts, in 16 bits, and kernels
per expert: Megatron adds them expert by expert in fp32 (`TEGroupedMLP._apply_bias`). Backward: 20
and 9."""
BIAS_PASSES_BACKWARD, BIAS_KERNELS_BACKWARD = 20, 9


def traffic_terms(layer: LayerInput) -> Iterator[Term]:
    """Yield norms, residuals, rotation, activation, casts and permutation of a forward pass."""
    net, moe, system = layer.net, layer.moe, layer.system
    moved = layer.tokens * elementwise_bytes(layer)
    yield _memory("norms, residuals, rotation, activation, casts", moved, system)
    if moe is not None:
        each = moe.top_k * net.hidden * system.number_bytes / layer.sizes.tensor
        copies = layer.tokens * each
        passes = system.software.expert_passes
        yield _memory("permutation of tokens for experts", copies * passes, system)
        if net.ffn_bias:
            yield from _biases(layer, moe, copies, BIAS_PASSES, BIAS_KERNELS)
    yield _started("starts and ends of kernels", kernels(moe, system), _start(system))


def backward_terms(layer: LayerInput) -> Iterator[Term]:
    """Yield the same of a backward pass; permutation is the reverse of the forward pass's."""
    net, moe, system = layer.net, layer.moe, layer.system
    moved = layer.tokens * elementwise_bytes(layer, backward=True)
    yield _memory("gradients of norms, residuals, rotation, activation, casts", moved, system)
    if moe is not None:
        copies = layer.tokens * moe.top_k * net.hidden * system.number_bytes / layer.sizes.tensor
        yield _memory("permutation of gradients", copies * system.software.expert_passes, system)
        if net.ffn_bias:
            yield from _biases(layer, moe, copies, BIAS_PASSES_BACKWARD, BIAS_KERNELS_BACKWARD)
    yield _started("starts and ends of kernels", 2 * kernels(moe, system), _start(system))


def _biases(
    layer: LayerInput, moe: MixtureOfExperts, copies: Numbers, passes: int, each: int
) -> Iterator[Term]:
    if layer.system.recipe.fused_experts:
        return
    yield _memory("biases of experts, in fp32", copies * passes, layer.system)
    launches = each * moe.experts / layer.sizes.expert
    yield _started("kernels of the biases of experts", launches, value("expert kernel"))


def kernels(moe: MixtureOfExperts | None, system: System) -> Numbers:
    """Return the kernels of a layer's forward pass, apart from those per expert."""
    fused = system.software.fused_elementwise
    dense = FUSED_KERNELS if fused else UNFUSED_KERNELS
    dense += CAST_KERNELS.get(system.precision, 0)
    if moe is None:
        return dense
    return dense + (EXPERT_KERNELS if fused else UNFUSED_EXPERT_KERNELS)


def elementwise_bytes(layer: LayerInput, *, backward: bool = False) -> Numbers:
    """Return the bytes per token that elementwise operations of a pass move.

    | numbers read and written | forward | backward |
    |---|---|---|
    | norm | 2 h | 3 h |
    | residual | 3 h | 3 h |
    | rotation | 2 (q + k) | 2 (q + k) |
    | SwiGLU | 3 f | 5 f |
    | GELU | 2 f | 3 f |
    | cast of products' inputs, or of the gradients of their outputs | 2 h + q + f | 3 h + q + 2 f |
    """
    net, moe, sizes, system = layer.net, layer.moe, layer.sizes, layer.system
    query, key = net.heads * net.qk_dim, net.kv_heads * net.qk_dim
    number, casts = system.number_bytes, system.cast_bytes
    ffn = net.ffn if moe is None else moe.shared_ffn
    activation, wide = (3 if net.gated else 2), (2 if net.gated else 1)
    if backward:
        activation = 5 if net.gated else 3
    outside: Numbers = number * 2 * (3 + 3 if backward else 2 + 3) * net.hidden
    turned: Numbers = number * 2 * (query + key) * system.software.rotates
    if not system.software.fused_elementwise:
        turned, outside = 3 * turned, 1.5 * outside
    inside: Numbers = turned + number * activation * ffn
    inside = inside + casts * (query + (wide * ffn if backward else ffn))
    outside = outside + casts * (3 if backward else 2) * net.hidden
    if moe is not None:
        cast = net.hidden + (wide * moe.ffn if backward else moe.ffn)
        inside = inside + moe.top_k * (number * activation * moe.ffn + casts * cast)
        inside = inside + 5 * 4 * moe.experts
    return outside / sizes.sequence_shards + inside / sizes.tensor


def gradient_terms(layer: LayerInput, products: Numbers) -> Iterator[Term]:
    """Yield the accumulation of weight gradients: one read and one write, in the products.

    It runs at the end of the products of dense matrices, so that only what exceeds their seconds
    counts; that of experts is part of their products. Sharded weights are gathered and sent.

    Args:
        products: seconds of the products that compute gradients of weights.
    """
    net, moe, sizes, system = layer.net, layer.moe, layer.sizes, layer.system
    weights = layer_parameters(net, moe)
    dense = weights.sharded / sizes.tensor + weights.replicated
    sharded = SHARDED_BYTES * (dense + weights.expert / sizes.expert)
    once = 2 * system.main_gradient_bytes * dense
    moved = system.moved(np.where(sizes.fully_sharded, sharded, once))
    within = np.minimum(moved.seconds, products)
    if system.hardware.cores is not None:  # a core does one after the other
        within = 0.0
    hidden = np.where(sizes.fully_sharded, 0.0, within)
    yield Term(
        "memory", "accumulation of gradients", moved.seconds - hidden,
        bytes=moved.amount, hidden=hidden, pieces=(moved,),
    )  # fmt: skip


def _memory(name: str, moved: Numbers, system: System) -> Term:
    return added("memory", name, (system.moved(moved),), bytes=moved)


def _started(name: str, launches: Numbers, each: float) -> Term:
    return added("memory", name, (TimePiece(launches, each, "launches"),), launches=launches)


def _start(system: System) -> float:
    return system.hardware.efficiency.kernel
