"""Seconds in which the host launches one pass of a layer.

| CUDA graphs | dense layer | layer with experts |
|---|---|---|
| none | dense | dense + experts |
| part (router, preprocessing) | dense | dense + 0.85 experts |
| part+attention | 0 | 0.85 experts |
| full | 0 | 0 |

Dense is `host_layer`, twice that in fewer than 16 bits, and `host_collective` for each collective
of tensor parallelism. Where experts drop no tokens, the host waits for their counts besides,
unless the whole layer is captured. A pass takes as long as the slower of GPU and host.
"""

import numpy as np

from mimokit.architecture.feed_forward import MixtureOfExperts
from mimokit.architecture.layer_work.collectives import layer_collectives
from mimokit.architecture.transformer import Transformer
from mimokit.axes import Axis
from mimokit.config.sizes import Numbers, ParallelSizes
from mimokit.prediction.step_time.constants import value
from mimokit.prediction.step_time.system import System

SCORES_PER_BLOCK = 4
"""Heads times samples must be a multiple of this number for Megatron's fused softmax. Otherwise
several kernels run instead (`megatron/model/fused_softmax.py`, `is_kernel_available`)."""


def launch_seconds(
    net: Transformer, moe: MixtureOfExperts | None, sizes: ParallelSizes, system: System
) -> Numbers:
    """Return the host seconds of launching one pass of a layer."""
    software, graphs = system.software, system.recipe.graphs
    if graphs == "full":
        return 0.0
    dense = _dense(net, sizes, system) if graphs in ("none", "part") else 0.0
    if moe is None:
        return dense
    experts = software.host_experts * (1.0 if graphs == "none" else value("host partly"))
    counts = 0.0 if system.recipe.drops_tokens else software.host_counts
    return dense + experts + counts


def _dense(net: Transformer, sizes: ParallelSizes, system: System) -> Numbers:
    software = system.software
    narrow = value("narrow launch") if system.is_narrow else 1.0
    seconds: Numbers = software.host_layer * narrow
    seconds = seconds + collectives(net, sizes) * (software.host_collective + _piped(sizes, system))
    if not software.host_softmax:
        return seconds
    scores = net.heads / sizes.tensor * sizes.micro_batch
    return seconds + software.host_softmax * np.not_equal(scores % SCORES_PER_BLOCK, 0)


def _piped(sizes: ParallelSizes, system: System) -> Numbers:
    """Return the seconds that a collective takes longer in a pipeline that spans domains."""
    if not system.software.host_piped:
        return 0.0
    spans = np.greater(sizes.ranks, system.hardware.domain_ranks)
    piped = np.logical_and(spans, np.greater(sizes.pipeline, 1))
    return system.software.host_piped * sizes.tensor * piped


def collectives(net: Transformer, sizes: ParallelSizes) -> Numbers:
    """Return the tensor-parallel collectives of a dense layer's pass."""
    return sum(
        each.count
        for each in layer_collectives(net, None, sizes, "forward")
        if each.axis == Axis.TENSOR and not each.projected
    )
