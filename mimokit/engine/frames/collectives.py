"""The collectives of frame parallel: integer metadata, and numbers that each rank sends to all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from mimokit.engine.torch_calls import all_gather_single


def gather_integers(
    own: Sequence[int], group: dist.ProcessGroup, device: torch.device
) -> list[list[int]]:
    """Return the integers of every rank of a group, which all have equally many. Collective."""
    sent = torch.tensor(own, dtype=torch.int64, device=device)
    received = sent.new_empty(group.size() * len(own))
    all_gather_single(received, sent, group=group)
    gathered: list[list[int]] = received.view(group.size(), -1).tolist()
    return gathered


class _AllToAll(torch.autograd.Function):
    """`all_to_all_single`, whose gradient goes the same way back."""

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


def all_to_all(
    sent: torch.Tensor,
    send_splits: Sequence[int],
    receive_splits: Sequence[int],
    group: dist.ProcessGroup,
) -> torch.Tensor:
    """Send a part of a tensor to every rank and return what they have sent. Collective.

    Its backward is a collective as well: every rank of the group must run it, or none.

    Args:
        sent: [elements], the parts one after the other.
        send_splits: [ranks], elements to each.
        receive_splits: [ranks], elements from each.
        group: the ranks.
    """
    result: torch.Tensor = _AllToAll.apply(  # type: ignore[no-untyped-call]
        sent, send_splits, receive_splits, group
    )
    return result


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
