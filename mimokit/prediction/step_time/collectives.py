"""Seconds of collectives: a latency, plus the volume over the bandwidth of the slowest link.

Ranks are numbered in the order tp-cp-dp-pp: neighbours in a group are `stride` ranks apart. A group
that spans domains uses the network ports of all its members in a domain at once (one ring per
port), so its network bandwidth is the bandwidth of a port times the members per domain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from mimokit.architecture.layer_work.collectives import LayerCollective
from mimokit.architecture.parallel_sizes import Numbers, ParallelSizes
from mimokit.architecture.transformer import MixtureOfExperts
from mimokit.axes import Axis
from mimokit.prediction.hardware import Hardware
from mimokit.prediction.step_time.system import System


def members_in_domain(hardware: Hardware, ranks: Numbers, stride: Numbers) -> Numbers:
    """Return the number of ranks of a group in one domain."""
    inside: Numbers = np.clip(hardware.domain_ranks // np.maximum(stride, 1), 1, ranks)
    return inside


def bandwidth(hardware: Hardware, ranks: Numbers, stride: Numbers) -> Numbers:
    """Return the bytes per second and rank of a ring over a group."""
    inside = members_in_domain(hardware, ranks, stride)
    fast = hardware.domain.bandwidth * hardware.efficiency.links
    slow = hardware.network.bandwidth * hardware.efficiency.network * inside
    return np.where(np.less(inside, ranks), np.minimum(fast, slow), fast)


def latency(hardware: Hardware, ranks: Numbers, stride: Numbers) -> Numbers:
    """Return the least seconds of a collective over a group."""
    inside = members_in_domain(hardware, ranks, stride)
    seconds = np.where(np.less(inside, ranks), hardware.network.latency, hardware.domain.latency)
    return np.where(np.greater(ranks, 1), seconds, 0.0)


def gather(hardware: Hardware, volume: Numbers, ranks: Numbers, stride: Numbers) -> Numbers:
    """Return the seconds of an all-gather or reduce-scatter whose full tensor has `volume` bytes.

    Each rank moves (n - 1) / n of it. An all-reduce takes twice as long.
    """
    moved = volume * (ranks - 1) / ranks
    return latency(hardware, ranks, stride) + moved / bandwidth(hardware, ranks, stride)


def ring(hardware: Hardware, volume: Numbers, ranks: Numbers, stride: Numbers) -> Numbers:
    """Return the seconds of passing `volume` bytes once around a group, neighbour to neighbour.

    Only one rank of a domain sends to the next domain, so a ring between domains has the bandwidth
    of one network port, however many members a domain has.
    """
    inside = members_in_domain(hardware, ranks, stride)
    fast = hardware.domain.bandwidth * hardware.efficiency.links
    slow = hardware.network.bandwidth * hardware.efficiency.network
    moved = volume * (ranks - 1) / ranks
    each = latency(hardware, ranks, stride)
    return each * (ranks - 1) + moved / np.where(np.less(inside, ranks), slow, fast)


def send(hardware: Hardware, volume: Numbers, distance: Numbers) -> Numbers:
    """Return the seconds of sending bytes to the rank `distance` ranks away."""
    near = np.less(distance, hardware.domain_ranks)
    fast = hardware.domain.bandwidth * hardware.efficiency.links
    slow = hardware.network.bandwidth * hardware.efficiency.network
    start = np.where(near, hardware.domain.latency, hardware.network.latency)
    return start + volume / np.where(near, fast, slow)


def dispatch(
    hardware: Hardware, volume: Numbers, ranks: Numbers, stride: Numbers, copies: int
) -> Numbers:
    """Return the seconds in which each rank sends each of its tokens to `copies` random ranks.

    A token crosses the network once per domain that needs it and is forwarded inside the domain
    (DeepEP, HybridEP). Of n places, n (1 - (1 - 1/n)^k) receive at least one of k copies.

    Args:
        volume: bytes of all tokens of one rank, each counted once.
    """
    inside = members_in_domain(hardware, ranks, stride)
    domains = ranks / inside
    fast = hardware.domain.bandwidth * hardware.efficiency.links
    slow = hardware.network.bandwidth * hardware.efficiency.network
    near = volume * _places(ranks, copies) * (inside - 1) / inside / fast
    far = volume * _places(domains, copies) * (domains - 1) / domains / slow
    return latency(hardware, ranks, stride) + np.maximum(near, far)


def _places(places: Numbers, copies: int) -> Numbers:
    return places * (1 - (1 - 1 / places) ** copies)


def exchange_seconds(
    collectives: Iterable[LayerCollective],
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    tokens: Numbers,
    system: System,
) -> Mapping[Axis, Numbers]:
    """Return axis -> seconds of a layer's collectives along it, one after the other."""
    hardware = system.hardware
    seconds: dict[Axis, Numbers] = dict.fromkeys((Axis.TENSOR, Axis.CONTEXT, Axis.EXPERT), 0.0)
    for each in collectives:
        # Gathered queries, keys and values are not predicted yet.
        if each.projected or not np.any(each.count):
            continue
        volume = system.number_bytes * each.numbers * tokens
        if each.axis == Axis.CONTEXT:
            once = ring(hardware, volume, sizes.context, sizes.tensor)
        elif moe is not None and each.axis == Axis.EXPERT:
            once = dispatch(hardware, volume, sizes.expert, 1, moe.top_k)
        else:
            once = gather(hardware, volume, sizes.tensor, 1)
        seconds[each.axis] = seconds[each.axis] + each.gathers * once
    return seconds


def tensor_seconds(
    moved: Numbers,
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    matrix: Numbers,
    system: System,
) -> tuple[Numbers, Numbers]:
    """Return the seconds of tensor-parallel collectives that are not overlapped, per layer.

    * ``none``: collectives and products run one after the other.
    * ``async``: in the backward pass, the gradient of the input is scattered and the input is
      gathered again while another product runs (Megatron-LM, `tensor_parallel/layers.py`).
    * ``pipelined``: collectives run in t pieces, each next to the product of another piece
      (Transformer Engine's user buffers). One piece remains, plus the time that exceeds the
      products.

    Args:
        moved: seconds of all of them in a forward pass, from `exchange_seconds`.
        matrix: seconds of the layer's products in a forward pass.

    Returns:
        Seconds of the forward pass, and of the backward pass.
    """
    if system.software.tensor_overlap == "none":
        return moved, moved
    if moe is None and system.pipelines_tensor:
        piece, rest = 1 / sizes.tensor, 1 - 1 / sizes.tensor
        forward = moved * piece + np.maximum(0.0, moved * rest - matrix)
        backward = moved / 2 * piece + np.maximum(0.0, 1.5 * moved * rest - 2 * matrix)
        return forward, backward
    return moved, moved / 2 + np.maximum(0.0, moved - 2 * matrix)
