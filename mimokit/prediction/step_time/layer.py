"""Seconds of one layer for one micro-batch on one rank, by part."""

from __future__ import annotations

import numpy as np

from mimokit.architecture.layer_work.collectives import layer_collectives
from mimokit.architecture.layer_work.products import ROUTER, layer_products, score_work
from mimokit.architecture.parallel_sizes import Numbers, ParallelSizes
from mimokit.architecture.transformer import (
    MixtureOfExperts,
    Transformer,
    dense_layer,
    expert_layer,
)
from mimokit.axes import Axis
from mimokit.prediction.step_time.breakdown import LayerTime, TimeBreakdown
from mimokit.prediction.step_time.collectives import (
    exchange_seconds,
    members_in_domain,
    tensor_seconds,
)
from mimokit.prediction.step_time.system import HALF, System

FLASH_BACKWARD = 2.5
"""Flash attention has five products in the backward pass, two in the forward pass (2205.14135)."""
FUSED_KERNELS, UNFUSED_KERNELS = 12, 25
"""Kernels of a dense layer's forward pass, of matrix products 4."""
SHARDED_BYTES = 16
"""Bytes moved per parameter and micro-batch if weights are sharded: a cast after each of two
gathers (4 each), the gradient written and read to be sent, its sum written and added."""
SCORE_BYTES, SCORE_BYTES_BACKWARD = 13, 19
"""Bytes moved per score without fusion, in 16 bits. Forward: written, read and written by softmax
and by dropout with its mask, read by the product with the values. Backward: the gradient is
written, read and written by dropout with its mask and by softmax with its result, and read by two
products. A third product reads the output of dropout."""
SCORES_PER_BLOCK = 4
"""Heads times samples must be a multiple of this number for Megatron's fused softmax. Otherwise
several kernels run instead (`megatron/model/fused_softmax.py`, `is_kernel_available`)."""


def layer_time(
    net: Transformer,
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    tokens: Numbers,
    visible: Numbers,
    system: System,
) -> LayerTime:
    """Return the seconds of one layer.

    Args:
        tokens: of one micro-batch on one rank, b s / c.
        visible: tokens that a token attends to on average.
    """
    attention, backward_attention = _attention(net, sizes, tokens, visible, system)
    collectives = layer_collectives(net, moe, sizes, "forward")
    exchanged = exchange_seconds(collectives, moe, sizes, tokens, system)
    ring, sent = exchanged[Axis.CONTEXT], exchanged[Axis.EXPERT]
    edges = system.hardware.efficiency.kernel * _kernels(moe, sizes, system)
    matrix = product_seconds(net, moe, sizes, tokens, system)
    memory = system.memory_seconds(_elementwise_bytes(net, moe, sizes, tokens, system)) + edges
    ahead, behind = tensor_seconds(exchanged[Axis.TENSOR], moe, sizes, matrix, system)
    forward = TimeBreakdown(
        matrix,
        attention,
        memory,
        ahead,
        np.maximum(0.0, ring - attention),
        _exposed_dispatch(sent, matrix + attention + memory, sizes, system),
    )
    backward = TimeBreakdown(
        2 * matrix,
        backward_attention,
        2 * memory,
        behind,
        np.maximum(0.0, 2 * ring - backward_attention),
        _exposed_dispatch(sent, 2 * (matrix + memory) + backward_attention, sizes, system),
    )
    launch = _launch(net, moe, sizes, system)
    return LayerTime(
        _launched(forward, launch, system),
        _launched(backward, launch, system),
        _gradients(net, moe, sizes, system),
    )


def product_seconds(
    net: Transformer,
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    tokens: Numbers,
    system: System,
) -> Numbers:
    """Return the seconds of a layer's linear layers in one forward pass on one rank.

    A product reads a tile before it multiplies and writes the tile afterwards, and no other tile
    multiplies meanwhile. The seconds of reading and writing are therefore added. They matter for
    narrow experts, which have few operations per number, and hardly for wide layers.
    """
    products = layer_products(net, moe, sizes)
    half_width = system.hardware.efficiency.half_width
    operations: Numbers = 0
    for product in products:
        narrow = 1 + half_width / product.width if half_width else 1
        operations = operations + narrow * (product.weights + product.bias)
    read = sum({product.of: product.rows * product.inputs for product in products}.values())
    # The router's scores are counted with the elementwise operations on them.
    written = sum(product.rows * product.outputs for product in products if product.of != ROUTER)
    if net.mla is not None:  # every head of the keys gets the one rotary part
        written = written + net.heads * net.mla.rope_dim / sizes.tensor
    moved = system.kept_bytes * read + system.number_bytes * written
    return system.matrix_seconds(2 * tokens * operations) + system.memory_seconds(tokens * moved)


def _kernels(moe: MixtureOfExperts | None, sizes: ParallelSizes, system: System) -> Numbers:
    """Return the number of kernels in a layer's forward pass. Each expert has separate kernels."""
    software = system.software
    kernels = FUSED_KERNELS if software.fused_elementwise else UNFUSED_KERNELS
    if moe is None:
        return kernels
    return kernels + software.expert_kernels * moe.experts / sizes.expert


def _launch(
    net: Transformer, moe: MixtureOfExperts | None, sizes: ParallelSizes, system: System
) -> Numbers:
    """Return the host seconds of launching one pass of a layer.

    The host waits at each gather and scatter. An all-reduce is one wait.
    """
    software = system.software
    # Those of a dense layer: dispatch to experts is part of `host_expert_layer`.
    waits = sum(
        each.count
        for each in layer_collectives(net, None, sizes, "forward")
        if each.axis == Axis.TENSOR and not each.projected
    )
    seconds: Numbers = software.host_layer if moe is None else software.host_expert_layer
    seconds = seconds + waits * software.host_collective
    if not software.host_softmax:
        return seconds
    scores = net.heads / sizes.tensor * sizes.micro_batch
    return seconds + software.host_softmax * np.not_equal(scores % SCORES_PER_BLOCK, 0)


def _launched(parts: TimeBreakdown, launch: Numbers, system: System) -> TimeBreakdown:
    """Return a pass that takes at least as long as its launch."""
    if system.software.launches_ahead:
        return parts.at_least(launch)
    others = TimeBreakdown(**{**vars(parts), "tensor": 0.0})
    return others.at_least(launch) + TimeBreakdown(tensor=parts.tensor)


def _gradients(
    net: Transformer, moe: MixtureOfExperts | None, sizes: ParallelSizes, system: System
) -> Numbers:
    """Return the seconds of accumulating a micro-batch's gradients: one read and one write."""
    layer = dense_layer(net) if moe is None else expert_layer(net, moe)
    parameters = layer.sharded / sizes.tensor + layer.replicated + layer.expert / sizes.expert
    added = 2 * system.main_gradient_bytes
    return system.memory_seconds(parameters * np.where(sizes.fully_sharded, SHARDED_BYTES, added))


def _attention(
    net: Transformer, sizes: ParallelSizes, tokens: Numbers, visible: Numbers, system: System
) -> tuple[Numbers, Numbers]:
    """Return the seconds of the attention core, forward and backward.

    Without fusion, masked scores are computed as well.
    """
    flops = 2 * tokens * score_work(net, sizes, visible)
    hardware, half = system.hardware, system.half
    if system.software.fused_attention:
        seconds = flops / (hardware.peak_flops[half] * hardware.efficiency.attention)
        return seconds, FLASH_BACKWARD * seconds
    unmasked = 2 if net.causal else 1
    scores = net.heads / sizes.tensor * tokens * visible * unmasked
    products = system.matrix_seconds(flops * unmasked, half)
    return (
        products + system.memory_seconds(_score_bytes(SCORE_BYTES, system) * scores),
        2 * products + system.memory_seconds(_score_bytes(SCORE_BYTES_BACKWARD, system) * scores),
    )


def _score_bytes(in_half: int, system: System) -> float:
    """Return the bytes moved per score; all but the mask of dropout grow with its width."""
    return 1 + (in_half - 1) * system.number_bytes / HALF


def _elementwise_bytes(
    net: Transformer,
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    tokens: Numbers,
    system: System,
) -> Numbers:
    """Return the bytes that elementwise operations move in a forward pass.

    They are norms, residuals, rotation, activation and casts. A norm reads and writes h numbers. A
    residual reads 2 h and writes h. SwiGLU reads 2 f and writes f, GELU reads f and writes f.
    """
    query, key = net.heads * net.qk_dim, net.kv_heads * net.qk_dim
    number = system.number_bytes
    outside = number * 2 * (2 + 3) * net.hidden / sizes.sequence_shards
    turned = number * 2 * (query + key) * system.software.rotates
    inside: Numbers = turned
    ffn = net.ffn if moe is None else moe.shared_ffn
    activation = number * (3 if net.gated else 2)
    inside = inside + activation * ffn
    if not system.software.fused_elementwise:
        inside = inside + 2 * turned
        outside = outside * 1.5
    casts = system.cast_bytes
    inside = inside + casts * (query + ffn)
    outside = outside + casts * 2 * net.hidden
    if moe is not None:
        copies = moe.top_k * net.hidden * number * system.software.expert_passes
        routed = moe.top_k * (activation * moe.ffn + casts * (net.hidden + moe.ffn))
        inside = inside + copies + routed + 5 * 4 * moe.experts
    return tokens * (outside + inside / sizes.tensor)


def _exposed_dispatch(
    seconds: Numbers, compute: Numbers, sizes: ParallelSizes, system: System
) -> Numbers:
    """Return the seconds of dispatch that are not overlapped.

    Between domains, Megatron overlaps dispatch with a layer of another micro-batch, which an
    interleaved schedule provides (`overlap_moe_expert_parallel_comm`).
    """
    inside = members_in_domain(system.hardware, sizes.expert, 1)
    hides = np.logical_and(np.less(inside, sizes.expert), np.greater(sizes.virtual, 1))
    return np.where(hides, np.maximum(0.0, seconds - compute), seconds)
