"""Rows of several tensors in one message to every rank of a group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from mimokit.engine.frames.collectives import all_to_all


@dataclass(frozen=True)
class Rows:
    """Rows of one tensor, in the order in which they are sent.

    Attributes:
        tensor: [rows, …].
        to: [ranks], rows to every rank.
        of: [ranks], rows from every rank.
    """

    tensor: torch.Tensor
    to: Sequence[int]
    of: Sequence[int]

    @property
    def width(self) -> int:
        """Numbers per row."""
        return math.prod(self.tensor.shape[1:])


def exchange_rows(
    rows: Sequence[Rows], group: dist.ProcessGroup, differentiable: bool, status: int = 0
) -> tuple[list[torch.Tensor], list[int]]:
    """Exchange rows of tensors of one type in one all-to-all. Collective.

    The message to a rank is one number, the status, and then its rows of every tensor. So no
    message is empty, and a rank can report to the others that its rows are wrong instead of leaving
    them waiting.

    Args:
        rows: the tensors, with equally wide rows on all ranks.
        differentiable: every rank runs the backward of the result, or none does.
        status: sent to all ranks.

    Returns:
        The received rows of every tensor, by the rank that sent them, and the status of every rank.
    """
    like = rows[0].tensor
    # Requires a gradient on all ranks alike, also where no row does: the backward is collective.
    mark = like.new_full((1,), status)
    if differentiable and like.is_floating_point():
        mark.requires_grad_()
    pieces = [
        torch.split(part.tensor.flatten(), [n * part.width for n in part.to]) for part in rows
    ]
    message = [
        piece for rank in range(group.size()) for piece in (mark, *(cut[rank] for cut in pieces))
    ]
    send = [1 + sum(part.to[rank] * part.width for part in rows) for rank in range(group.size())]
    lengths = [[1, *(part.of[rank] * part.width for part in rows)] for rank in range(group.size())]
    with torch.set_grad_enabled(differentiable and torch.is_grad_enabled()):
        received = all_to_all(torch.cat(message), send, [sum(length) for length in lengths], group)
    parts = torch.split(received, [number for length in lengths for number in length])
    stride = 1 + len(rows)
    statuses = [int(number) for number in torch.cat(parts[::stride]).tolist()]
    found = [
        torch.cat(parts[1 + place :: stride]).view(sum(part.of), *part.tensor.shape[1:])
        for place, part in enumerate(rows)
    ]
    return found, statuses
