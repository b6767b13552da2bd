"""Collectives over tensors whose first dimensions differ between ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


def gather_uneven(
    piece: torch.Tensor, sizes: Sequence[int], group: dist.ProcessGroup
) -> torch.Tensor:
    """Concatenate the pieces of a group: [own size, …] -> [sum of sizes, …].

    Args:
        piece: piece of this rank.
        sizes: first dimension of the piece of every rank of the group, in its order.
        group: the ranks that gather.
    """
    whole = piece.new_empty((sum(sizes), *piece.shape[1:]))
    torch.split(whole, list(sizes))[group.rank()].copy_(piece)
    gather_in_place(whole, sizes, group)
    return whole


def gather_in_place(whole: torch.Tensor, sizes: Sequence[int], group: dist.ProcessGroup) -> None:
    """Fill a tensor that contains the piece of this rank with the pieces of the others.

    Every rank sends its piece to all others, which receive it in place: without padding, without
    copies, and without waiting for other ranks' turns.

    Args:
        whole: [sum of sizes, …], contiguous.
        sizes: first dimension of the piece of every rank of the group, in its order.
        group: the ranks that gather.
    """
    places = torch.split(whole, list(sizes))
    mine = group.rank()
    operations = []
    for step in range(1, len(sizes)):
        to, source = (mine + step) % len(sizes), (mine - step) % len(sizes)
        if sizes[mine]:
            operations.append(dist.P2POp(dist.isend, places[mine], group=group, group_peer=to))
        if sizes[source]:
            operations.append(
                dist.P2POp(dist.irecv, places[source], group=group, group_peer=source)
            )
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
