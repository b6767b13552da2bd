"""The bridge between modules that share their ranks but not their DP size.

It is two routes on which every rank keeps its samples. In one direction these are all that it
takes; in the other the ranks of a gather group then gather those of each other. Embeddings are rows
`[tokens, hidden]`, in sample order. Samples may have different numbers of rows. Every rank of a
gather group has the whole batch of the module with fewer replicas, so it knows the row counts of
the other ranks without communication.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from mimokit.engine.bridges.checks import ReplicaCheck
from mimokit.engine.bridges.messages import Mailbox
from mimokit.engine.bridges.routes import Direction, both_ways
from mimokit.engine.device import rank_device
from mimokit.engine.ragged import Ragged
from mimokit.planning.types import ColocatedBridge
from mimokit.units import counted

Listener = Callable[[Direction, torch.Tensor, Sequence[int], torch.Tensor], None]
"""Called with what a rank gave to the bridge and what it took, and the rows of every sample of the
gather group in between."""


class _Crossing(torch.autograd.Function):
    """Rows cross along one route, and their gradient along the other.

    A gradient is gathered, not zero-padded and summed later: DDP sums over data parallel ranks,
    never over the tensor-parallel ranks that have the pieces here.
    """

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        bridge: ColocatedBridgeCommunicator,
        rows: Sequence[int],
        sent: Ragged,
        taken: list[Ragged],
    ) -> torch.Tensor:
        ctx.bridge, ctx.rows = bridge, rows
        taken.append(bridge.cross(sent, rows, 0))
        return taken[0].tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        crossed = ctx.bridge.cross(Ragged(gradient), ctx.rows, 1)
        return crossed.tensor, None, None, None, None


class ColocatedBridgeCommunicator(ReplicaCheck):
    """Executes the bridge plan between two modules that share their ranks.

    Attributes:
        listeners: called after every crossing, of activations and of gradients.
        ends: rank -> its samples of the source, and of the destination.

    Args:
        source_tensor_group: see `ReplicaCheck`.
        kinds: number of kinds of rows that cross: those of the module, and sizes of its items.
    """

    def __init__(
        self, plan: ColocatedBridge, source_tensor_group: dist.ProcessGroup, kinds: int = 1
    ) -> None:
        """Create the gather groups. Collective over the world."""
        super().__init__(plan.source, source_tensor_group)
        self.plan, self._rank = plan, dist.get_rank()
        self.listeners: list[Listener] = []
        self.ends = (
            plan.wholes if plan.direction == "fan_out" else plan.pieces,
            plan.wholes if plan.direction == "fan_in" else plan.pieces,
        )
        nothing_sent = Mailbox(rank_device())
        self._ways = both_ways(plan, self.ends, nothing_sent, kinds=kinds)

    def __call__(self, embeddings: torch.Tensor, rows_per_sample: Sequence[int]) -> torch.Tensor:
        """Move embeddings from the source's replicas to the destination's; gradients move back.

        Args:
            embeddings: [rows, hidden], the source's output on this rank.
            rows_per_sample: rows of every sample in the batch of the module with fewer replicas.

        Returns:
            [rows, hidden], the destination's input.

        Raises:
            ReplicaMismatchError: if the source's tensor-parallel ranks disagree, in a call that
                checks.
            ValueError: if the number of rows of the embeddings differs from that of the samples.
        """
        return self.carry(Ragged(embeddings), rows_per_sample).tensor

    def carry(self, sent: Ragged, rows_per_sample: Sequence[int]) -> Ragged:
        """Do the same with rows of each kind, of the samples on this rank."""
        taken: list[Ragged] = []
        tensor = _Crossing.apply(sent.tensor, self, rows_per_sample, sent, taken)  # type: ignore[no-untyped-call]
        return taken[0].carrying(tensor)

    def cross(
        self, message: Ragged, rows_per_sample: Sequence[int], direction: Direction
    ) -> Ragged:
        """Do the same in one direction, outside of autograd. Collective over the gather group."""
        given, (own, others) = message.tensor, self._rows_at_ends(rows_per_sample, direction)
        if direction == 0:
            self.check_if_due(given)
        if len(given) != sum(own):
            raise ValueError(
                f"Module {self.source!r} gave {counted(len(given), 'row')} on rank {self._rank} "
                f"but its samples have {sum(own)}."
            )
        way = self._ways[direction]
        way.send(Ragged(given, own, message.items, message.sizes), microbatch=0)
        taken = way.receive(microbatch=0, known=others)
        for listener in self.listeners:
            listener(direction, given, rows_per_sample, taken.tensor)
        return taken

    def rows_of_group(self, own: Sequence[int]) -> list[int]:
        """Return the rows of every sample of the gather group; collective where it has several.

        Args:
            own: of the source's samples on this rank.
        """
        if self.plan.direction != "fan_in":
            return list(own)
        counts: list[int] = self._ways[0].gather_counts(torch.tensor([own]))[0].tolist()
        return counts

    def rows_kept(self, rows: Sequence[int]) -> list[int]:
        """Return the rows of the destination's samples on this rank, of those of the group."""
        return self._rows_at_ends(rows, 0)[1]

    def _rows_at_ends(
        self, rows: Sequence[int], direction: Direction
    ) -> tuple[list[int], list[int]]:
        """Return the rows of the samples that this rank gives, and of those that it takes."""
        first = self.plan.wholes[self._rank][0]
        given, taken = (
            list(rows[start - first : stop - first])
            for start, stop in (end[self._rank] for end in self.ends)
        )
        return (taken, given) if direction else (given, taken)
