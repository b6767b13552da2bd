"""Seconds of collectives: a latency and the volume over the narrowest link of the group.

Groups are counted in the order tp-cp-dp-pp: neighbours of a group are `stride` ranks apart. A group
that spans domains moves over the network through the network ports of all its members in a domain
at once (rings over every port), so the narrowest link is members-in-domain times the port.
"""

from __future__ import annotations

import numpy as np

from mimokit.architecture.parallel_sizes import Numbers
from mimokit.prediction.hardware import Hardware


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
