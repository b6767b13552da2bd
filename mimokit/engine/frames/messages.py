"""What the ranks of a group send each other: integers, and rows of tensors in one message."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from mimokit.engine.torch_calls import all_gather_single


def gather_integers(
    integers: Sequence[int], group: dist.ProcessGroup, device: torch.device
) -> list[list[int]]:
    """Return the integers of every rank of a group, which all have equally many. Collective."""
    sent = torch.tensor(integers, dtype=torch.int64, device=device)
    received = sent.new_empty(group.size() * len(integers))
    all_gather_single(received, sent, group=group)
    gathered: list[list[int]] = received.view(group.size(), -1).tolist()
    return gathered


class _AllToAll(torch.autograd.Function):
    """`all_to_all_single`, whose gradient goes the same way back; that is collective as well."""

    @staticmethod
    def forward(
        context: torch.autograd.function.FunctionCtx,
        sent: torch.Tensor,
        send_splits: Sequence[int],
        receive_splits: Sequence[int],
        group: dist.ProcessGroup,
    ) -> torch.Tensor:
        context.way_back = (receive_splits, send_splits, group)  # type: ignore[attr-defined]
        return _exchange(sent, send_splits, receive_splits, group)

    @staticmethod
    def backward(
        context: torch.autograd.function.FunctionCtx, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        way_back = context.way_back  # type: ignore[attr-defined]
        return _exchange(gradient, *way_back), None, None, None


def _exchange(
    sent: torch.Tensor,
    send_splits: Sequence[int],
    receive_splits: Sequence[int],
    group: dist.ProcessGroup,
) -> torch.Tensor:
    received = sent.new_empty(sum(receive_splits))
    dist.all_to_all_single(
        received, sent.contiguous(), list(receive_splits), list(send_splits), group=group
    )
    return received


@dataclass(frozen=True)
class Rows:
    """Rows of one tensor as they are sent, and how many go to and come of each rank."""

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
        received = _AllToAll.apply(torch.cat(message), send, list(map(sum, lengths)), group)  # type: ignore[no-untyped-call]
    parts = torch.split(received, [number for length in lengths for number in length])
    stride = 1 + len(rows)
    statuses = [int(number) for number in torch.cat(parts[::stride]).tolist()]
    tensors = [
        torch.cat(parts[1 + place :: stride]).view(sum(part.of), *part.tensor.shape[1:])
        for place, part in enumerate(rows)
    ]
    return tensors, statuses
