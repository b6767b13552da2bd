"""Seconds of one layer for one micro-batch on one rank, by what the time goes into."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from mimokit.plan.architecture.parameters import dense_layer, expert_layer
from mimokit.plan.architecture.transformer import MixtureOfExperts, Transformer
from mimokit.plan.hardware import Hardware
from mimokit.plan.memory.states import Storage
from mimokit.plan.sizes import Numbers, ParallelSizes
from mimokit.plan.step_time.collectives import dispatch, gather, members_in_domain, ring
from mimokit.plan.step_time.software import Software

HALF = 2
"""Bytes of a 16-bit number."""
FLASH_BACKWARD = 2.5
"""Flash attention's backward has five products where its forward has two (arXiv 2205.14135)."""
FUSED_KERNELS, UNFUSED_KERNELS = 12, 25
"""Kernels of a dense layer's forward pass, of matrix products 4."""
SCORE_BYTES = 13
"""Bytes moved per score without fusion: written, read and written by softmax and by dropout with
its mask, read by the product with the values."""


@dataclass(frozen=True)
class Parts:
    """Seconds by what they go into.

    Attributes:
        matrix: matrix products of linear layers.
        attention: attention core.
        memory: elementwise kernels, norms, casts, permutations; starts and ends of kernels.
        tensor: tensor-parallel collectives that nothing hides.
        context: context-parallel exchange of keys and values that nothing hides.
        expert: dispatch to experts and back.
        host: what the host takes longer to launch than the GPU to compute.
    """

    matrix: Numbers = 0.0
    attention: Numbers = 0.0
    memory: Numbers = 0.0
    tensor: Numbers = 0.0
    context: Numbers = 0.0
    expert: Numbers = 0.0
    host: Numbers = 0.0

    @property
    def total(self) -> Numbers:
        """All seconds."""
        return sum(getattr(self, field.name) for field in fields(self))

    def __add__(self, other: Parts) -> Parts:
        return Parts(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(self))
        )

    def times(self, factor: Numbers) -> Parts:
        """Return every part times a factor."""
        return Parts(*(getattr(self, field.name) * factor for field in fields(self)))

    def at_least(self, seconds: Numbers) -> Parts:
        """Return the same with a host part that fills up to `seconds`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["host"] = self.host + np.maximum(0.0, seconds - self.total)
        return Parts(**values)


@dataclass(frozen=True)
class LayerTime:
    """Forward and backward of one layer, without recomputation."""

    forward: Parts
    backward: Parts


@dataclass(frozen=True)
class Setting:
    """What a layer runs on.

    Attributes:
        hardware: GPU and links.
        software: the training stack.
        precision: of matrix products; attention and logits are 16-bit in any case.
    """

    hardware: Hardware
    software: Software
    precision: str = "bf16"

    def matrix_seconds(
        self, flops: Numbers, precision: str | None = None, width: Numbers = np.inf
    ) -> Numbers:
        """Return the seconds of matrix products; `width` is the narrower side on one rank."""
        kind = precision or self.precision
        reached = self.hardware.peak_flops[kind] * self.hardware.efficiency.matrix[kind]
        reached = reached * self.software.matrix_share
        return flops / reached * (1 + self.hardware.efficiency.half_width / width)

    def memory_seconds(self, moved: Numbers) -> Numbers:
        """Return the seconds of moving bytes through memory."""
        return moved / (self.hardware.memory_bandwidth * self.hardware.efficiency.memory)

    @property
    def half(self) -> str:
        """The 16-bit precision of what stays 16-bit."""
        return self.precision if self.precision in ("bf16", "fp16", "fp32", "tf32") else "bf16"

    @property
    def storage(self) -> Storage:
        """Bytes of gradients and of what matrix products keep."""
        kept = {"fp8": 1.0, "mxfp8": 1.0, "nvfp4": 0.5}.get(self.precision, 2.0)
        return Storage(self.software.main_gradient_bytes, kept)

    @property
    def casts(self) -> bool:
        """Matrix products take 8- or 4-bit numbers, which have to be made."""
        return self.precision in ("fp8", "mxfp8", "nvfp4")


def layer_time(
    net: Transformer,
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    tokens: Numbers,
    visible: Numbers,
    setting: Setting,
) -> LayerTime:
    """Return the seconds of one layer.

    Args:
        net: the layers.
        moe: experts of this layer, or None for a dense one.
        sizes: how the module is cut.
        tokens: of one micro-batch on one rank, b s / c.
        visible: tokens that a token attends to on average.
        setting: what it runs on.
    """
    software = setting.software
    collective = _tensor(net, sizes, tokens, setting)
    attention = _attention(net, sizes, tokens, visible, setting)
    ring = _context(net, sizes, tokens, setting)
    kernels = FUSED_KERNELS if software.fused_elementwise else UNFUSED_KERNELS
    edges = setting.hardware.efficiency.kernel * kernels
    matrix = _matrix(net, moe, sizes, tokens, setting)
    memory = setting.memory_seconds(_elementwise_bytes(net, moe, sizes, tokens, setting)) + edges
    sent = _dispatch(net, moe, sizes, tokens, setting)
    backward_attention = attention * (FLASH_BACKWARD if software.fused_attention else 2.0)
    forward = Parts(
        matrix,
        attention,
        memory,
        collective,
        np.maximum(0.0, ring - attention),
        _exposed_dispatch(sent, matrix + attention + memory, sizes, setting),
    )
    backward = Parts(
        2 * matrix,
        backward_attention,
        2 * memory,
        collective,
        np.maximum(0.0, 2 * ring - backward_attention),
        _exposed_dispatch(sent, 2 * (matrix + memory) + backward_attention, sizes, setting),
    )
    launch = software.host_layer if moe is None else software.host_expert_layer
    blocking = np.where(np.greater(sizes.tensor, 1), 2 * software.host_collective, 0.0)
    return LayerTime(forward.at_least(launch + blocking), backward.at_least(launch + blocking))


def _matrix(
    net: Transformer,
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    tokens: Numbers,
    setting: Setting,
) -> Numbers:
    """Return seconds of a layer's linear layers in one forward pass on one rank."""
    return sum(
        setting.matrix_seconds(2 * tokens * weights, width=width)
        for weights, width in matrices(net, moe, sizes)
    )


def matrices(
    net: Transformer, moe: MixtureOfExperts | None, sizes: ParallelSizes
) -> list[tuple[Numbers, Numbers]]:
    """Return (weights that a token visits on one rank, their narrower side), per kind of matrix."""
    t = sizes.tensor
    layer = dense_layer(net) if moe is None else expert_layer(net, moe)
    width = net.ffn if moe is None else moe.shared_ffn
    ffn = (3 if net.gated else 2) * net.hidden * width
    found = [
        (ffn / t, np.minimum(net.hidden, max(width, 1) / t)),
        ((layer.sharded - ffn) / t, np.minimum(net.hidden, net.heads * net.v_dim / t)),
    ]
    if net.mla is not None:
        compressed = net.mla.q_rank + net.mla.kv_rank + net.mla.rope_dim
        found.append((net.hidden * compressed, compressed))
    if moe is not None:
        found.append((layer.visited / t, min(net.hidden, moe.ffn)))
        found.append((net.hidden * moe.experts / t, moe.experts))
    return found


def core_flops(
    net: Transformer, sizes: ParallelSizes, tokens: Numbers, visible: Numbers
) -> Numbers:
    """Return operations of a layer's attention core in one forward pass on one rank."""
    return 2 * tokens * visible * net.heads * (net.qk_dim + net.v_dim) / sizes.tensor


def _attention(
    net: Transformer, sizes: ParallelSizes, tokens: Numbers, visible: Numbers, setting: Setting
) -> Numbers:
    """Return the seconds of the attention core; without fusion masked scores are computed too."""
    flops = core_flops(net, sizes, tokens, visible)
    hardware, half = setting.hardware, setting.half
    if setting.software.fused_attention:
        return flops / (hardware.peak_flops[half] * hardware.efficiency.attention)
    unmasked = 2 if net.causal else 1
    scores = net.heads / sizes.tensor * tokens * visible * unmasked
    return setting.matrix_seconds(flops * unmasked, half) + setting.memory_seconds(
        SCORE_BYTES * scores
    )


def _elementwise_bytes(
    net: Transformer,
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    tokens: Numbers,
    setting: Setting,
) -> Numbers:
    """Return bytes through memory in a forward pass: norms, residuals, rotation, activation, casts.

    A norm reads and writes h numbers, a residual reads two and writes one; SwiGLU reads 2 f and
    writes f, GELU reads f and writes f. A cast reads 16 bits and writes two 8-bit copies.
    """
    query, key = net.heads * net.qk_dim, net.kv_heads * net.qk_dim
    outside = HALF * 2 * (2 + 3) * net.hidden / sizes.sequence_shards
    inside: Numbers = HALF * 2 * (query + key)
    ffn = net.ffn if moe is None else moe.shared_ffn
    activation = HALF * (3 if net.gated else 2)
    inside += activation * ffn
    if not setting.software.fused_elementwise:
        inside += 2 * HALF * 2 * (query + key)
        outside = outside * 1.5
    casts = 2 * HALF * setting.casts
    inside += casts * (query + ffn)
    outside = outside + casts * 2 * net.hidden
    if moe is not None:
        copies = moe.top_k * net.hidden * HALF * setting.software.expert_passes
        routed = moe.top_k * (activation * moe.ffn + casts * (net.hidden + moe.ffn))
        inside += copies + routed + 5 * 4 * moe.experts
    return tokens * (outside + inside / sizes.tensor)


def _tensor(net: Transformer, sizes: ParallelSizes, tokens: Numbers, setting: Setting) -> Numbers:
    """Return seconds of a pass's tensor-parallel collectives: 2 gathers and 2 scatters.

    Without sequence parallelism two all-reduces, which move the same.
    """
    one = gather(setting.hardware, HALF * net.hidden * tokens, sizes.tensor, 1)
    return 4 * one * (1 - setting.software.tensor_hidden)


def _context(net: Transformer, sizes: ParallelSizes, tokens: Numbers, setting: Setting) -> Numbers:
    """Return seconds of passing keys and values once around the context-parallel ring."""
    width = net.kv_heads * (net.qk_dim + net.v_dim) / sizes.tensor
    volume = HALF * tokens * sizes.context * width
    return ring(setting.hardware, volume, sizes.context, sizes.tensor)


def _dispatch(
    net: Transformer,
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    tokens: Numbers,
    setting: Setting,
) -> Numbers:
    """Return seconds of sending tokens to experts and back."""
    if moe is None:
        return 0.0
    volume = HALF * net.hidden * tokens / sizes.tensor
    return 2 * dispatch(setting.hardware, volume, sizes.expert, 1, moe.top_k)


def _exposed_dispatch(
    seconds: Numbers, compute: Numbers, sizes: ParallelSizes, setting: Setting
) -> Numbers:
    """Return what of the dispatch nothing hides.

    Between domains Megatron runs it behind another micro-batch's layer, which an interleaved
    schedule has at hand (`overlap_moe_expert_parallel_comm`).
    """
    inside = members_in_domain(setting.hardware, sizes.expert, 1)
    hides = np.logical_and(np.less(inside, sizes.expert), np.greater(sizes.virtual, 1))
    return np.where(hides, np.maximum(0.0, seconds - compute), seconds)
