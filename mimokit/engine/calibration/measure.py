"""All rates of one rank, in the order in which all ranks measure them."""

import platform
from collections.abc import Callable, Iterator, Sequence

import psutil
import torch
import torch.distributed as dist

from mimokit.engine.calibration.timing import (
    attention_rates,
    median_seconds,
    memory_bandwidth,
    product_times,
)
from mimokit.engine.collectives import gather_json, gather_uneven
from mimokit.engine.device import close_groups_since, group_timeout, open_groups, rank_device
from mimokit.engine.megatron.cpu import CPU_ONLY, share_cores
from mimokit.prediction.calibration.measurements import (
    CollectiveKind,
    CollectiveTime,
    RankMeasurements,
)
from mimokit.samples import CalibrationSample, Emit
from mimokit.units import counted


def measure(emit: Emit, precision: str | None = None) -> RankMeasurements:
    """Measure on this rank, and emit a `CalibrationSample` before each part. Collective.

    Args:
        precision: of products and attention; None: fp32 and bf16, that of training on this device
            first.
    """
    share_cores()

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


CPU_SIZES = (512, 16_384, 131_072, 524_288)
"""All more than one number, of which gloo passes on one piece alone."""
CUDA_SIZES = (4, 16_384, 1_048_576, 16_777_216, 268_435_456)
REPEATS = 15


def group_sizes(world: int) -> list[int]:
    """Return 2, 4, 8, … up to the world."""
    return [2**power for power in range(1, world.bit_length()) if 2**power <= world]


def collectives_over(size: int, hosts: Sequence[str]) -> list[CollectiveTime]:
    """Measure collectives over a group of `size` neighbouring ranks. Collective over the world.

    Args:
        size: ranks of a group; the remaining ranks of the world stay idle.
        hosts: the host of every rank.
    """
    groups = [list(range(i, i + size)) for i in range(0, dist.get_world_size() - size + 1, size)]
    across = any(len({hosts[rank] for rank in members}) > 1 for members in groups)
    mine: dist.ProcessGroup | None = None
    for members in groups:
        group = dist.new_group(members, timeout=group_timeout())
        if dist.get_rank() in members:
            mine = group
    if mine is None:
        return []
    return [
        CollectiveTime(kind, size, count, across, median_seconds(call, REPEATS))
        for count in (CPU_SIZES if CPU_ONLY else CUDA_SIZES)
        for kind, call in _calls(count, size, mine)
    ]


def _calls(
    size: int, ranks: int, group: dist.ProcessGroup
) -> Iterator[tuple[CollectiveKind, Callable[[], object]]]:
    """Yield the collectives whose result has `size` bytes; fewer numbers than ranks are reduced."""
    numbers = size // 4
    whole = torch.zeros(numbers, device=rank_device())
    yield "all-reduce", lambda: dist.all_reduce(whole, group=group)
    if numbers >= ranks:
        part = torch.zeros(numbers // ranks, device=rank_device())
        yield "all-gather", lambda: gather_uneven(part, [len(part)] * ranks, group)
