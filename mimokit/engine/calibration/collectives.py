"""Collectives over groups of 2, 4, 8, … ranks, all groups of a size at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist

from mimokit.engine.calibration.timing import seconds_of
from mimokit.engine.collectives import gather_uneven
from mimokit.engine.device import group_timeout, rank_device
from mimokit.engine.megatron import CPU_ONLY
from mimokit.prediction.calibration.measurements import CollectiveKind, CollectiveTime

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
        CollectiveTime(kind, size, count, across, seconds_of(call, REPEATS))
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
