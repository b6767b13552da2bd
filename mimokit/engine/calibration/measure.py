"""All measurements of one rank, in the order in which all ranks do them."""

from __future__ import annotations

import platform
from dataclasses import replace

import psutil
import torch
import torch.distributed as dist

from mimokit.engine.calibration.collectives import Collective, collectives_over, group_sizes
from mimokit.engine.calibration.compute import (
    attention_rates,
    cores,
    memory_bandwidth,
    product_times,
)
from mimokit.engine.calibration.pieces import pieces_of_step
from mimokit.engine.calibration.rounds import measure_round, step_time
from mimokit.engine.calibration.single_rank import Alone
from mimokit.engine.device import close_groups_since, open_groups, rank_device
from mimokit.engine.megatron import CPU_ONLY
from mimokit.prediction.calibration.measurements import RankMeasurements
from mimokit.samples import CalibrationSample, Emit


def measure(emit: Emit) -> RankMeasurements:
    """Measure on this rank. Collective over the world.

    Args:
        emit: takes a `CalibrationSample` per part that is measured next, and other samples.
    """
    if CPU_ONLY:
        torch.set_num_threads(1)

    def next_part(name: str) -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            emit(CalibrationSample(name))

    before, hosts = open_groups(), _hosts()
    next_part("cores and memory")
    share, bandwidth = cores(), memory_bandwidth()
    next_part("matrix products and attention")
    products, attention = product_times(), attention_rates()
    collectives: list[Collective] = []
    for size in group_sizes(dist.get_world_size()):
        next_part(f"collectives over {size} ranks")
        collectives += collectives_over(size, hosts)
    pieces, stages = pieces_of_step(Alone.create())
    # Groups of all sizes in turn, so that no size comes after pieces of one kind alone.
    collectives.sort(key=lambda one: (one.size, one.kind, one.ranks))
    rounds = []
    for ranks in at_work(dist.get_world_size()):
        next_part(f"pieces of a training step, {ranks} ranks at work")
        rounds.append(measure_round(pieces, collectives, ranks))
    next_part("what a step costs around its pieces")
    around = step_time(emit)
    for stage in stages:
        stage.wrapped.release()
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
        rounds=tuple(
            replace(one, pieces=(around, *one.pieces)) for one in rounds if one is not None
        ),
    )


def at_work(world: int) -> list[int]:
    """Return on how many ranks rounds are measured, all of them last.

    Ranks with a device of their own are as quick however many others work.
    """
    return [*group_sizes(world - 1), world] if CPU_ONLY else [world]


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
