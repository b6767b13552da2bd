"""Seconds of collectives: a latency, plus the volume over the bandwidth of the slowest link.

Ranks are numbered in the order tp-cp-dp-pp: neighbours in a group are `stride` ranks apart. A group
that spans domains uses the network ports of all its members in a domain at once (one ring per
port), so its network bandwidth is the bandwidth of a port times the members per domain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from mimokit.architecture.feed_forward import MixtureOfExperts
from mimokit.architecture.layer_work.collectives import LayerCollective
from mimokit.axes import SIZE_FIELDS, Axis
from mimokit.config.sizes import Numbers, ParallelSizes
from mimokit.prediction.hardware import Hardware
from mimokit.prediction.step_time.constants import value
from mimokit.prediction.step_time.system import System
from mimokit.prediction.step_time.terms import TimePiece

GATHERED_BYTES: Mapping[str, float] = {"fp8": 1.0, "mxfp8": 1.03, "nvfp4": 0.56}
"""Bytes per number that a gather of a product's input moves, its scales included: inputs are cast
before they are gathered. What is scattered has 16 bits."""


@dataclass(frozen=True)
class AxisTraffic:
    """Collectives of a pass.

    Attributes:
        bytes: that a rank sends.
        pieces: latencies, and bytes of the slower link.
    """

    seconds: Numbers = 0.0
    launches: Numbers = 0.0
    bytes: Numbers = 0.0
    ranks: Numbers = 1
    pieces: tuple[TimePiece, ...] = ()

    def plus(
        self, count: Numbers, message: TimedMessage, moved: Numbers, ranks: Numbers
    ) -> AxisTraffic:
        """Return the same with `count` more collectives."""
        return AxisTraffic(
            self.seconds + count * message.seconds,
            self.launches + count,
            self.bytes + count * moved,
            ranks,
            (*self.pieces, *message.pieces(count)),
        )


@dataclass(frozen=True)
class TimedMessage:
    """A collective or a send.

    Attributes:
        latency: seconds that it takes at least.
        bytes: over the link that decides.
        rate: bytes per second there.
    """

    latency: Numbers
    bytes: Numbers
    rate: Numbers

    @property
    def seconds(self) -> Numbers:
        """Seconds of all of it."""
        return self.latency + self.bytes / self.rate

    def pieces(self, count: Numbers = 1) -> tuple[TimePiece, TimePiece]:
        """Return the latencies and the bytes of several."""
        return (
            TimePiece(count, self.latency, "messages"),
            TimePiece(count * self.bytes, 1 / self.rate, "bytes over links"),
        )


def members_in_domain(hardware: Hardware, ranks: Numbers, stride: Numbers) -> Numbers:
    """Return the number of ranks of a group in one domain, all of which have as many.

    Of 72 GPUs of a rack, groups of 128 ranks take 64.
    """
    most = np.clip(hardware.domain_ranks // np.maximum(stride, 1), 1, ranks)
    inside: Numbers = ranks / np.ceil(ranks / most)
    return inside


def bandwidth(hardware: Hardware, ranks: Numbers, stride: Numbers) -> Numbers:
    """Return the bytes per second and rank of a ring over a group."""
    return _bandwidth(hardware, ranks, members_in_domain(hardware, ranks, stride))


def _bandwidth(hardware: Hardware, ranks: Numbers, inside: Numbers) -> Numbers:
    fast = hardware.domain.bandwidth * hardware.efficiency.links
    slow = hardware.network.bandwidth * hardware.efficiency.network * inside
    return np.where(np.less(inside, ranks), np.minimum(fast, slow), fast)


def _latency(hardware: Hardware, ranks: Numbers, inside: Numbers) -> Numbers:
    """Return the least seconds of a collective over a group with `inside` ranks in a domain.

    A ring crosses from domain to domain as often as the group has domains, less one.
    """
    crossings = np.maximum(1, ranks / inside - 1) * hardware.network.latency
    seconds = np.where(np.less(inside, ranks), crossings, hardware.domain.latency)
    return np.where(np.greater(ranks, 1), seconds, 0.0)


def gather(hardware: Hardware, volume: Numbers, ranks: Numbers, stride: Numbers) -> Numbers:
    """Return the seconds of an all-gather or reduce-scatter whose full tensor has `volume` bytes.

    Each rank moves (n - 1) / n of it. An all-reduce takes twice as long.
    """
    return gathered(hardware, volume, ranks, stride).seconds


def gathered(hardware: Hardware, volume: Numbers, ranks: Numbers, stride: Numbers) -> TimedMessage:
    """Return an all-gather or reduce-scatter; see `gather`."""
    moved = volume * (ranks - 1) / ranks
    inside = members_in_domain(hardware, ranks, stride)
    rate = _bandwidth(hardware, ranks, inside)
    latency = _latency(hardware, ranks, inside)
    if hardware.cores is not None:  # gloo passes pieces on from rank to rank
        latency = latency * (ranks - 1)
    return TimedMessage(latency, moved, rate)


def ring(hardware: Hardware, volume: Numbers, ranks: Numbers, stride: Numbers) -> TimedMessage:
    """Return the message of passing `volume` bytes once around a group, neighbour to neighbour.

    Only one rank of a domain sends to the next domain, so a ring between domains has the bandwidth
    of one network port, however many members a domain has.
    """
    inside = members_in_domain(hardware, ranks, stride)
    fast = hardware.domain.bandwidth * hardware.efficiency.links
    slow = hardware.network.bandwidth * hardware.efficiency.network
    moved = volume * (ranks - 1) / ranks
    each = _latency(hardware, ranks, inside)
    return TimedMessage(each * (ranks - 1), moved, np.where(np.less(inside, ranks), slow, fast))


def send(hardware: Hardware, volume: Numbers, distance: Numbers) -> Numbers:
    """Return the seconds of sending bytes to the rank `distance` ranks away."""
    return sent(hardware, volume, distance).seconds


def sent(hardware: Hardware, volume: Numbers, distance: Numbers) -> TimedMessage:
    """Return the message of sending bytes to the rank `distance` ranks away."""
    near = np.less(distance, hardware.domain_ranks)
    fast = hardware.domain.bandwidth * hardware.efficiency.links
    slow = hardware.network.bandwidth * hardware.efficiency.network
    start = np.where(near, hardware.domain.latency, hardware.network.latency)
    if hardware.cores is not None:  # a header goes ahead of the tensors
        start = 2 * start
    return TimedMessage(start, volume, np.where(near, fast, slow))


def dispatch(
    system: System, volume: Numbers, ranks: Numbers, stride: Numbers, copies: int
) -> TimedMessage:
    """Return the exchange in which each rank sends each of its tokens to `copies` random ranks.

    NCCL's all-to-all sends every copy to the rank of its expert. DeepEP and HybridEP send a token
    to the network once per domain that needs it, and inside the domain once per rank. Of n places,
    n (1 - (1 - 1/n)^k) receive at least one of k copies.

    Args:
        volume: bytes of all tokens of one rank, each counted once.
    """
    hardware, kind = system.connected, system.recipe.dispatcher
    inside = members_in_domain(hardware, ranks, stride)
    domains = ranks / inside
    share = value("dispatch all-to-all" if kind == "alltoall" else "dispatch fused")
    fast = hardware.domain.bandwidth * share
    slow = hardware.network.bandwidth * hardware.efficiency.network
    if kind == "alltoall":
        near = volume * copies * (inside - 1) / ranks
        far = volume * copies * (ranks - inside) / ranks
    else:
        near = volume * _places(ranks, copies) / ranks * (inside - 1)
        far = volume * _places(domains, copies) * (domains - 1) / domains
    is_near = np.greater(near / fast, far / slow)
    latency = _latency(hardware, ranks, inside)
    return TimedMessage(latency, np.where(is_near, near, far), np.where(is_near, fast, slow))


def _places(places: Numbers, copies: int) -> Numbers:
    return places * (1 - (1 - 1 / places) ** copies)


def exchange_seconds(
    collectives: Iterable[LayerCollective],
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    tokens: Numbers,
    system: System,
) -> Mapping[Axis, AxisTraffic]:
    """Return axis -> a layer's collectives along it, one after the other."""
    hardware = system.connected
    by_axis: dict[Axis, AxisTraffic] = dict.fromkeys(
        (Axis.TENSOR, Axis.CONTEXT, Axis.EXPERT), AxisTraffic()
    )
    for each in collectives:
        # Gathered queries, keys and values are not predicted yet.
        if each.projected or not np.any(each.count):
            continue
        numbers = each.numbers * tokens
        volume = system.number_bytes * numbers
        if each.axis == Axis.CONTEXT:
            once = ring(hardware, volume, sizes.context, sizes.tensor)
            moved = volume * (sizes.context - 1) / sizes.context
        elif moe is not None and each.axis == Axis.EXPERT:
            once = dispatch(system, volume, sizes.expert, 1, moe.top_k)
            moved = volume * _copies(moe.top_k, sizes.expert, system)
        else:
            if each.kind == "all-gather":
                volume = numbers * GATHERED_BYTES.get(system.precision, system.number_bytes)
            once = gathered(hardware, volume, sizes.tensor, 1)
            moved = volume * (sizes.tensor - 1) / sizes.tensor
        ranks = getattr(sizes, SIZE_FIELDS[each.axis])
        by_axis[each.axis] = by_axis[each.axis].plus(each.gathers, once, moved, ranks)
    return by_axis


def _copies(copies: int, ranks: Numbers, system: System) -> Numbers:
    if system.recipe.dispatcher == "alltoall":
        return copies * (ranks - 1) / ranks
    return _places(ranks, copies) * (ranks - 1) / ranks


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
    more = tensor_backward(sizes, system)
    if moe is None and system.pipelines_tensor:
        piece, rest = 1 / sizes.tensor, 1 - 1 / sizes.tensor
        forward = moved * piece + np.maximum(0.0, moved * rest - matrix)
        backward = moved / 2 * piece + np.maximum(0.0, more * moved * rest - 2 * matrix)
        return forward, backward
    return moved, moved / 2 + np.maximum(0.0, (more - 0.5) * moved - 2 * matrix)


def tensor_backward(sizes: ParallelSizes, system: System) -> Numbers:
    """Return the tensor-parallel collectives of a backward pass over those of a forward pass.

    With sequence parallelism the input of a product is gathered again, for the gradient of weights.
    """
    gathers_again = np.logical_and(
        sizes.sequence_parallel, system.software.tensor_overlap != "none"
    )
    return np.where(gathers_again, 1.5, 1.0)


def exposed_dispatch(seconds: Numbers, compute: Numbers, system: System) -> Numbers:
    """Return what dispatch adds to a pass.

    Beside a layer of another micro-batch (`overlap_moe_expert_parallel_comm`) it takes part of the
    multiprocessors and of the memory, so that what is hidden still costs a share of it.
    """
    if not system.recipe.dispatch_overlap:
        return seconds
    beside = np.minimum(seconds, compute)
    return seconds - beside + value("dispatch contention") * beside
