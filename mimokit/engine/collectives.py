"""Collectives over tensors whose first dimensions differ between ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


def gather_uneven(
    piece: torch.Tensor, sizes: Sequence[int], group: dist.ProcessGroup
) -> torch.Tensor:
    """Lay the pieces of a group end to end: [own size, …] -> [sum of sizes, …].

    Pieces are padded to the longest, for gloo gathers equal sizes only.

    Args:
        piece: of this rank.
        sizes: first dimension of the piece of every rank of the group, in its order.
        group: the ranks that gather.
    """
    padded = piece.new_zeros((max(sizes), *piece.shape[1:]))
    padded[: piece.shape[0]] = piece
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded, group=group)
    return torch.cat([part[:size] for part, size in zip(gathered, sizes, strict=True)])
