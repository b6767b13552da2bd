"""Collectives over groups of 2, 4, 8, … ranks, all groups of a size at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from mimokit.engine.calibration.clock import Stopwatch, median_timing, timed
from mimokit.engine.collectives import gather_uneven
from mimokit.engine.device import group_timeout, rank_device
from mimokit.engine.megatron import CPU_ONLY
from mimokit.engine.pipeline.messages import Mailbox
from mimokit.engine.pipeline.tags import Tag
from mimokit.plan.calibration.measurements import CollectiveKind, CollectiveTime

CPU_SIZES = (512, 16_384, 131_072, 524_288)
CUDA_SIZES = (16_384, 1_048_576, 16_777_216, 268_435_456)
REPEATS = 9
WORK_OPERATIONS, WORK_NUMBERS = 20, 16_384


def group_sizes(world: int) -> list[int]:
    """Return 2, 4, 8, … up to the world."""
    return [2**power for power in range(1, world.bit_length()) if 2**power <= world]


def collective_times(size: int, hosts: Sequence[str]) -> list[CollectiveTime]:
    """Measure all collectives over groups of `size` neighbouring ranks. Collective over the world.

    Args:
        size: ranks of a group; what is left of the world stays idle.
        hosts: the host of every rank.
    """
    groups = [list(range(i, i + size)) for i in range(0, dist.get_world_size() - size + 1, size)]
    across = any(len({hosts[rank] for rank in members}) > 1 for members in groups)
    mine: tuple[list[int], dist.ProcessGroup] | None = None
    for members in groups:
        group = dist.new_group(members, timeout=group_timeout())
        if dist.get_rank() in members:
            mine = members, group
    if mine is None:
        return []
    members, group = mine
    found = []
    for count in CPU_SIZES if CPU_ONLY else CUDA_SIZES:
        for kind, call in _calls(count, members, group).items():
            seconds, cpu = timed(call, REPEATS).seconds, _cpu_between_work(call)
            found.append(CollectiveTime(kind, size, count, across, seconds, cpu))
    dist.destroy_process_group(group)
    return found


def _cpu_between_work(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call that comes after other work, as in training.

    Called over and over its ranks would stay in step and its code in the caches. What waiting adds
    to the work that follows is not counted.
    """
    watch = Stopwatch()
    for _ in range(REPEATS):
        _work()
        watch.start()
        call()
        watch.stop()
    return median_timing(watch.laps).cpu_seconds


def _work() -> None:
    """Pass over some memory, in small operations as a layer's."""
    for _ in range(WORK_OPERATIONS):
        torch.ones(WORK_NUMBERS, device=rank_device()).add_(1.0).sum()


def _calls(
    size: int, members: list[int], group: dist.ProcessGroup
) -> dict[CollectiveKind, Callable[[], object]]:
    """Return the collectives whose whole result has `size` bytes, as training calls them."""
    ranks, numbers = len(members), size // 4
    whole = torch.zeros(numbers, device=rank_device())
    part = torch.zeros(numbers // ranks, device=rank_device())
    even, sizes = whole[: len(part) * ranks], [len(part)] * ranks
    calls: dict[CollectiveKind, Callable[[], object]] = {
        "all-reduce": lambda: dist.all_reduce(whole, group=group),
        "all-gather": lambda: gather_uneven(part, sizes, group),
        "reduce-scatter": lambda: dist.reduce_scatter_single(part, even, group=group),
    }
    if ranks == 2:
        calls["send"] = _exchange(whole, next(r for r in members if r != dist.get_rank()))
    return calls


def _exchange(values: torch.Tensor, peer: int) -> Callable[[], object]:
    """Return a call that sends one message to a rank and receives one from it."""
    mailbox, tag = Mailbox(rank_device()), Tag(0, 0, 0)
    counts = torch.zeros(1, dtype=torch.int64, device=rank_device())

    def exchange() -> None:
        mailbox.send([values, counts], peer, tag)
        mailbox.receive(peer, tag)
        mailbox.wait()

    return exchange
