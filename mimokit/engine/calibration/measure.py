"""All rates of one rank, in the order in which all ranks measure them."""

from __future__ import annotations

import platform

import psutil
import torch
import torch.distributed as dist

from mimokit.engine.calibration.collectives import collectives_over, group_sizes
from mimokit.engine.calibration.timing import attention_rates, memory_bandwidth, product_times
from mimokit.engine.collectives import gather_json
from mimokit.engine.device import close_groups_since, open_groups, rank_device
from mimokit.engine.megatron import CPU_ONLY
from mimokit.prediction.calibration.measurements import CollectiveTime, RankMeasurements
from mimokit.samples import CalibrationSample, Emit
from mimokit.units import counted


def measure(emit: Emit, precision: str | None = None) -> RankMeasurements:
    """Measure on this rank, and emit a `CalibrationSample` before each part. Collective.

    Args:
        precision: of products and attention; None: fp32 and bf16, that of training on this device
            first.
    """
    if CPU_ONLY:
        torch.set_num_threads(1)

    def next_part(name: str) -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            emit(CalibrationSample(name))

    before, hosts = open_groups(), gather_json(platform.node())
    next_part("memory")
    bandwidth = memory_bandwidth()
    next_part("matrix products and attention")
    precisions = _precisions(precision)
    products, attention = product_times(precisions), attention_rates(precisions)
    collectives: list[CollectiveTime] = []
    for size in group_sizes(dist.get_world_size()):
        next_part(f"collectives over {counted(size, 'rank')}")
        collectives += collectives_over(size, hosts)
    close_groups_since(before)
    device, memory = _device(hosts)
    return RankMeasurements(
        device=device,
        host=hosts[dist.get_rank()],
        shares_cores=CPU_ONLY,
        memory_bytes=memory,
        memory_bandwidth=bandwidth,
        products=tuple(products),
        attention=attention,
        collectives=tuple(collectives),
    )


def _precisions(asked: str | None) -> tuple[str, ...]:
    if asked is None:
        return ("fp32", "bf16") if CPU_ONLY else ("bf16", "fp32")
    return tuple(dict.fromkeys(("fp32", asked))) if CPU_ONLY else (asked,)


def _device(hosts: list[str]) -> tuple[str, float]:
    if not CPU_ONLY:
        properties = torch.cuda.get_device_properties(rank_device())
        return properties.name, float(properties.total_memory)
    name = platform.processor() or platform.machine()
    return f"a core of {name}", psutil.virtual_memory().total / hosts.count(platform.node())
