"""Seconds of tensor-parallel collectives that nothing hides."""

from __future__ import annotations

import numpy as np

from mimokit.architecture.parallel_sizes import Numbers, ParallelSizes
from mimokit.architecture.transformer import MixtureOfExperts, Transformer
from mimokit.prediction.step_time.collectives import gather
from mimokit.prediction.step_time.system import HALF, System


def tensor_seconds(
    net: Transformer,
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    tokens: Numbers,
    matrix: Numbers,
    system: System,
) -> tuple[Numbers, Numbers]:
    """Return seconds of a layer's collectives in a forward and a backward pass.

    A pass has two gathers and two scatters, one of each around attention and one around the
    feed-forward layer; without sequence parallelism two all-reduces, which move the same. Routed
    experts are reached by dispatch: around them there are none.

    * ``none``: every collective waits for the product before it and is waited for.
    * ``async``: in the backward pass the gradient of the input is scattered, and the input gathered
      again, while another product runs (Megatron-LM, `tensor_parallel/layers.py`).
    * ``pipelined``: collectives move in t pieces, each beside the product of another piece
      (Transformer Engine's user buffers): one piece stays, and what products are too short for.

    Args:
        net: the layers.
        moe: experts of this layer, or None for a dense one.
        sizes: how the module is cut.
        tokens: of one micro-batch on one rank.
        matrix: seconds of the layer's products in a forward pass.
        system: what it runs on.
    """
    count = 4 if moe is None or moe.shared_ffn else 2
    moved = count * gather(system.hardware, HALF * net.hidden * tokens, sizes.tensor, 1)
    if system.software.tensor_overlap == "none":
        return moved, moved
    if moe is None and system.pipelines_tensor:
        piece, rest = 1 / sizes.tensor, 1 - 1 / sizes.tensor
        forward = moved * piece + np.maximum(0.0, moved * rest - matrix)
        backward = moved / 2 * piece + np.maximum(0.0, 1.5 * moved * rest - 2 * matrix)
        return forward, backward
    return moved, moved / 2 + np.maximum(0.0, moved - 2 * matrix)
