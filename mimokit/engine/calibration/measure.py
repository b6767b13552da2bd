"""All measurements of one rank, in the order in which all ranks do them."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import psutil
import torch
import torch.distributed as dist

from mimokit.engine.calibration.alone import Alone
from mimokit.engine.calibration.collectives import Collective, collectives_over, group_sizes
from mimokit.engine.calibration.compute import (
    attention_rates,
    cores,
    memory_bandwidth,
    product_times,
)
from mimokit.engine.calibration.pieces import UNCOUNTED, piece_times
from mimokit.engine.device import rank_device
from mimokit.engine.groups import close_groups_since, open_groups
from mimokit.engine.megatron import CPU_ONLY
from mimokit.plan.calibration.measurements import RankMeasurements


def measure(emit: Callable[[dict[str, Any]], None]) -> RankMeasurements:
    """Measure on this rank. Collective over the world.

    Args:
        emit: takes samples; those of kind "calibration" say what is measured next.
    """
    if CPU_ONLY:
        torch.set_num_threads(1)

    def next_part(name: str) -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            emit({"kind": "calibration", "part": name})

    before, hosts = open_groups(), _hosts()
    next_part("cores and memory")
    share, bandwidth = cores(), memory_bandwidth()
    next_part("matrix products and attention")
    products, attention = product_times(), attention_rates()
    collectives: list[Collective] = []
    for size in group_sizes(dist.get_world_size()):
        next_part(f"collectives over {size} ranks")
        collectives += collectives_over(size, hosts)
    next_part("pieces of a training step")
    pieces, round_seconds = piece_times(Alone.create(), collectives, emit)
    share = (share + cores()) / 2
    close_groups_since(before)
    device, memory = _device(hosts)
    return RankMeasurements(
        device=device,
        host=hosts[dist.get_rank()],
        shares_cores=CPU_ONLY,
        memory_bytes=memory,
        memory_bandwidth=bandwidth,
        cores=share,
        products=tuple(products),
        attention=attention,
        collectives=tuple(one.time(UNCOUNTED) for one in collectives),
        pieces=tuple(pieces),
        round_seconds=round_seconds,
    )


def _hosts() -> list[str]:
    hosts = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, platform.node())
    return hosts


def _device(hosts: list[str]) -> tuple[str, float]:
    """Return the name of the device and the bytes of its memory that one rank can use."""
    if not CPU_ONLY:
        properties = torch.cuda.get_device_properties(rank_device())
        return properties.name, float(properties.total_memory)
    sharing = hosts.count(platform.node())
    name = platform.processor() or platform.machine()
    return f"one of {sharing} ranks on {name}", psutil.virtual_memory().total / sharing
