"""Collectives of a tensor parallel group, and what a rank sends in them.

They call methods of the group, so that a group that is not registered with torch.distributed, such
as one of threads, works as well.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.distributed as dist

Group = dist.ProcessGroup | None
"""Ranks that share layers or a vocabulary, in the order of their shards; None for a single
process."""


@dataclass
class CollectiveTraffic:
    """What this rank has given to collectives; an algorithm may send bytes more than once."""

    calls: int = 0
    bytes: int = 0


_counting: ContextVar[tuple[CollectiveTraffic, ...]] = ContextVar("_counting", default=())


@contextmanager
def counting_traffic() -> Iterator[CollectiveTraffic]:
    """Yield what the collectives in this block count."""
    traffic = CollectiveTraffic()
    token = _counting.set((*_counting.get(), traffic))
    try:
        yield traffic
    finally:
        _counting.reset(token)


def _await(work: dist.Work, tensor: torch.Tensor) -> None:
    work.wait()
    for traffic in _counting.get():
        traffic.calls += 1
        traffic.bytes += tensor.nbytes


def rank_of(group: Group) -> int:
    """Return the place of this rank in its group."""
    return 0 if group is None else group.rank()


def size_of(group: Group) -> int:
    """Return the ranks of a group."""
    return 1 if group is None else group.size()


def all_gathered(tensor: torch.Tensor, group: Group) -> torch.Tensor:
    """Return the tensors of all ranks: [ranks, …]. Collective."""
    if group is None or group.size() == 1:
        return tensor[None]
    tensor = tensor.contiguous()
    parts = [torch.empty_like(tensor) for _ in range(group.size())]
    _await(group.allgather([parts], [tensor]), tensor)
    return torch.stack(parts)


def summed(tensor: torch.Tensor, group: Group) -> torch.Tensor:
    """Return the sum over all ranks, in place. Collective."""
    if group is None or group.size() == 1:
        return tensor
    _await(group.allreduce([tensor]), tensor)
    return tensor
