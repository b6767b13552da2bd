"""Collectives over groups of 2, 4, 8, … ranks, all groups of a size at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, permutations
from statistics import fmean

import torch
import torch.distributed as dist

from mimokit.engine.calibration.timing import Stopwatch, others_seconds, timed
from mimokit.engine.collectives import gather_uneven
from mimokit.engine.device import group_timeout, rank_device
from mimokit.engine.megatron import CPU_ONLY
from mimokit.engine.pipeline.messages import Mailbox
from mimokit.engine.torch_calls import reduce_scatter_single
from mimokit.planning.message_tags import Tag
from mimokit.prediction.calibration.measurements import (
    CollectiveKind,
    CollectiveTime,
    calls_in_a_row,
)

CPU_SIZES = (4, 512, 16_384, 131_072, 524_288)
CUDA_SIZES = (4, 16_384, 1_048_576, 16_777_216, 268_435_456)
REPEATS = 9


@dataclass
class TimedCollective:
    """A collective with one place in a round, between pieces of a training step.

    Attributes:
        size: bytes of the whole result.
        across: the group spans hosts.
        last_member: highest rank of this rank's group.
        seconds: of the wall clock, called repeatedly.
        watch: laps of the calling thread, all calls in a row.
        others: CPU seconds of the other threads, from the first call to the next collective.
    """

    kind: CollectiveKind
    ranks: int
    size: int
    across: bool
    last_member: int
    seconds: float
    call: Callable[[], object]
    watch: Stopwatch = field(default_factory=Stopwatch)
    others: list[float] = field(default_factory=list)

    def time(self, uncounted: int) -> CollectiveTime:
        """Return its time in training, over the rounds after the first uncounted ones."""
        cpu = self.watch.mean(uncounted).cpu_seconds + fmean(self.others[uncounted:])
        each = cpu / calls_in_a_row(self.kind)
        return CollectiveTime(self.kind, self.ranks, self.size, self.across, self.seconds, each)


class CpuCharges:
    """Charges the CPU seconds of a process's other threads to the collective that they serve.

    A rank continues as soon as it has its own result, while gloo's threads still send and receive
    what other ranks need. All of this between two collectives is charged to the first.
    """

    def __init__(self) -> None:
        self._current: TimedCollective | None = None
        self._since = 0.0

    def call(self, collective: TimedCollective) -> None:
        """Call a collective as many times as it occurs in a row."""
        self.close()
        self._current, self._since = collective, others_seconds()
        collective.watch.start()
        for _ in range(calls_in_a_row(collective.kind)):
            collective.call()
        collective.watch.stop()

    def close(self) -> None:
        """End the charge to the last collective."""
        if self._current is not None:
            self._current.others.append(others_seconds() - self._since)
            self._current = None


def group_sizes(world: int) -> list[int]:
    """Return 2, 4, 8, … up to the world."""
    return [2**power for power in range(1, world.bit_length()) if 2**power <= world]


def collectives_over(size: int, hosts: Sequence[str]) -> list[TimedCollective]:
    """Return all collectives over a group of `size` neighbouring ranks. Collective over the world.

    Args:
        size: ranks of a group; the remaining ranks of the world stay idle.
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
    return [
        TimedCollective(kind, size, count, across, mine[0][-1], timed(call, REPEATS).seconds, call)
        for count in (CPU_SIZES if CPU_ONLY else CUDA_SIZES)
        for kind, call in _calls(count, *mine).items()
    ]


def _calls(
    size: int, members: list[int], group: dist.ProcessGroup
) -> dict[CollectiveKind, Callable[[], object]]:
    """Return the collectives whose result has `size` bytes; a single number is only reduced."""
    ranks, numbers = len(members), size // 4
    whole = torch.zeros(numbers, device=rank_device())
    part = torch.zeros(numbers // ranks, device=rank_device())
    all_reduce: dict[CollectiveKind, Callable[[], object]] = {
        "all-reduce": lambda: dist.all_reduce(whole, group=group)
    }
    if numbers < ranks:
        return all_reduce
    even, sizes = whole[: len(part) * ranks], [len(part)] * ranks
    calls: dict[CollectiveKind, Callable[[], object]] = {
        **all_reduce,
        "all-gather": lambda: gather_uneven(part, sizes, group),
        "reduce-scatter": lambda: reduce_scatter_single(part, even, group=group),
        "broadcast": lambda: dist.broadcast(whole, members[0], group=group),
    }
    if ranks == 2:
        calls["send"] = _message(whole, members)
    return calls


def _message(values: torch.Tensor, members: Sequence[int]) -> Callable[[], object]:
    """Return a call that sends a message between two ranks, each way in turn, as stages do."""
    mailbox, tag, ways = Mailbox(rank_device()), Tag(0, 0, 0), cycle(permutations(members))

    def message() -> None:
        sender, receiver = next(ways)
        if dist.get_rank() == sender:
            mailbox.send([values], receiver, tag)
            mailbox.wait()
        else:
            mailbox.receive(sender, tag)

    return message
