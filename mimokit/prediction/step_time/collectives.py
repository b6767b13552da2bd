"""Seconds of collectives: a latency and the volume over the narrowest link of the group.

Groups are counted in the order tp-cp-dp-pp: neighbours of a group are `stride` ranks apart. A group
that spans domains moves over the network through the network ports of all its members in a domain
at once (rings over every port), so the narrowest link is members-in-domain times the port.
"""

from __future__ import annotations

import numpy as np

from mimokit.architecture.parallel_sizes import Numbers, ParallelSizes
from mimokit.architecture.transformer import MixtureOfExperts, Transformer
from mimokit.prediction.hardware import Hardware
from mimokit.prediction.step_time.system import HALF, System


def members_in_domain(hardware: Hardware, ranks: Numbers, stride: Numbers) -> Numbers:
    """Return how many ranks of a group share one domain."""
    inside: Numbers = np.clip(hardware.domain_ranks // np.maximum(stride, 1), 1, ranks)
    return inside


def bandwidth(hardware: Hardware, ranks: Numbers, stride: Numbers) -> Numbers:
    """Return the bytes per second and rank of a ring over a group."""
    inside = members_in_domain(hardware, ranks, stride)
    fast = hardware.domain.bandwidth * hardware.efficiency.links
    slow = hardware.network.bandwidth * hardware.efficiency.network * inside
    return np.where(np.less(inside, ranks), np.minimum(fast, slow), fast)


def latency(hardware: Hardware, ranks: Numbers, stride: Numbers) -> Numbers:
    """Return the seconds that a collective over a group takes at least."""
    inside = members_in_domain(hardware, ranks, stride)
    own = np.where(np.less(inside, ranks), hardware.network.latency, hardware.domain.latency)
    return np.where(np.greater(ranks, 1), own, 0.0)


def gather(hardware: Hardware, volume: Numbers, ranks: Numbers, stride: Numbers) -> Numbers:
    """Return the seconds of an all-gather or reduce-scatter whose whole result has `volume` bytes.

    Each rank moves (n - 1) / n of it; an all-reduce is two of them.
    """
    moved = volume * (ranks - 1) / ranks
    return latency(hardware, ranks, stride) + moved / bandwidth(hardware, ranks, stride)


def ring(hardware: Hardware, volume: Numbers, ranks: Numbers, stride: Numbers) -> Numbers:
    """Return the seconds of passing `volume` bytes once around a group, neighbour to neighbour.

    Only one rank of a domain stands at its border, so that a ring between domains is as slow as one
    network port, whatever the members of the group.
    """
    inside = members_in_domain(hardware, ranks, stride)
    fast = hardware.domain.bandwidth * hardware.efficiency.links
    slow = hardware.network.bandwidth * hardware.efficiency.network
    moved = volume * (ranks - 1) / ranks
    each = latency(hardware, ranks, stride)
    return each * (ranks - 1) + moved / np.where(np.less(inside, ranks), slow, fast)


def send(hardware: Hardware, volume: Numbers, distance: Numbers) -> Numbers:
    """Return the seconds to send bytes to the rank `distance` further on."""
    near = np.less(distance, hardware.domain_ranks)
    fast = hardware.domain.bandwidth * hardware.efficiency.links
    slow = hardware.network.bandwidth * hardware.efficiency.network
    start = np.where(near, hardware.domain.latency, hardware.network.latency)
    return start + volume / np.where(near, fast, slow)


def dispatch(
    hardware: Hardware, volume: Numbers, ranks: Numbers, stride: Numbers, copies: int
) -> Numbers:
    """Return the seconds in which every rank sends each of its tokens to `copies` others at random.

    A token crosses the network once per domain that wants it and is passed on inside (DeepEP,
    HybridEP): of n places, n (1 - (1 - 1/n)^k) are wanted by at least one copy.

    Args:
        hardware: links.
        volume: bytes of all tokens of one rank, once each.
        ranks: ranks of the group.
        stride: distance of its neighbours.
        copies: experts that a token visits.
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
