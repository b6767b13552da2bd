"""Moves encoder output to the language model where both share ranks but not their DP size.

The plan says which ranks gather together and which samples a rank keeps. Embeddings are sent as
rows `[tokens, hidden]`, in sample order. Samples may have different numbers of rows. Every rank of
a gather group has the whole batch of the module with fewer replicas, so it knows the row counts of
the other ranks without communication.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from mimokit.engine.colocated.checks import EveryCall
from mimokit.engine.device import group_timeout
from mimokit.engine.parallel.collectives import gather_uneven
from mimokit.planning.types import ColocatedBridge


class ReplicaMismatchError(RuntimeError):
    """The tensor-parallel ranks of an encoder have different outputs."""


@dataclass(frozen=True)
class RowCuts:
    """The range of rows of each rank of a gather group, in gather order.

    Attributes:
        starts: first row of each rank within the gathered rows.
        sizes: number of rows of each rank.
        position: index of this rank in the gather group.
    """

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    position: int

    @property
    def total(self) -> int:
        """Rows of the whole gather group."""
        return sum(self.sizes)


def gather_rows(piece: torch.Tensor, cuts: RowCuts, group: dist.ProcessGroup) -> torch.Tensor:
    """Concatenate the pieces of a gather group: [own rows, h] -> [all rows, h]."""
    return gather_uneven(piece, cuts.sizes, group)


def keep_rows(whole: torch.Tensor, cuts: RowCuts) -> torch.Tensor:
    """Cut this rank's rows out of the rows of its gather group."""
    return whole.narrow(0, cuts.starts[cuts.position], cuts.sizes[cuts.position]).contiguous()


class _Gather(torch.autograd.Function):
    """Fan-in: gather the outputs; every rank keeps its rows of the gradient."""

    @staticmethod
    def forward(
        ctx: Any, piece: torch.Tensor, cuts: RowCuts, group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.cuts = cuts
        return gather_rows(piece, cuts, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return keep_rows(gradient, ctx.cuts), None, None


class _Keep(torch.autograd.Function):
    """Fan-out: keep own rows of the output; gather the gradient.

    The gradient is gathered, not zero-padded and summed later: DDP sums over data parallel ranks,
    never over the tensor-parallel ranks that have the pieces here.
    """

    @staticmethod
    def forward(
        ctx: Any, whole: torch.Tensor, cuts: RowCuts, group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.cuts, ctx.group = cuts, group
        return keep_rows(whole, cuts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gather_rows(gradient.contiguous(), ctx.cuts, ctx.group), None, None


Listener = Callable[[torch.Tensor, Sequence[int], torch.Tensor], None]
"""Called with (embeddings, rows per sample, result) of every call of a bridge."""


class ColocatedBridgeCommunicator:
    """Executes the bridge plan between two modules that share their ranks.

    Attributes:
        plan: the planned bridge.
        listeners: called after every call of the bridge.
        checks: decides which calls check the replicas of the source; by default all do.
        comparisons: how many did, which are as many collectives of the tensor-parallel group.

    Args:
        plan: the planned bridge.
        source_tensor_group: tensor-parallel group of the source module on this rank; its members
            must have the same output.
    """

    def __init__(self, plan: ColocatedBridge, source_tensor_group: dist.ProcessGroup) -> None:
        """Create the gather groups. Collective over the world."""
        self.plan = plan
        self.listeners: list[Listener] = []
        self.checks = EveryCall()
        self.comparisons = 0
        self._tensor_group = source_tensor_group
        rank = dist.get_rank()
        self._members = next(group for group in plan.gather_groups if rank in group)
        self._group: dist.ProcessGroup | None = None
        if plan.direction != "equal":
            self._group, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
                [list(group) for group in plan.gather_groups], timeout=group_timeout()
            )

    def cuts(self, rows_per_sample: Sequence[int]) -> RowCuts:
        """Return the ranges of rows of all ranks of the gather group.

        Args:
            rows_per_sample: rows of every sample of the gather group's batch.
        """
        slices = [self.plan.slices[member] for member in self._members]
        bounds = [0]
        for rows in rows_per_sample:
            bounds.append(bounds[-1] + int(rows))
        return RowCuts(
            starts=tuple(bounds[start] for start, _ in slices),
            sizes=tuple(bounds[stop] - bounds[start] for start, stop in slices),
            position=self._members.index(dist.get_rank()),
        )

    def __call__(self, embeddings: torch.Tensor, rows_per_sample: Sequence[int]) -> torch.Tensor:
        """Move embeddings from the source's replicas to the destination's.

        Args:
            embeddings: [rows, hidden], the source's output on this rank.
            rows_per_sample: rows of every sample in the batch of the module with fewer replicas.

        Returns:
            [rows, hidden], the destination's input on this rank.

        Raises:
            ReplicaMismatchError: if the source's tensor-parallel ranks disagree, in a call that
                checks.
            ValueError: if the number of rows of the embeddings differs from that of the samples.
        """
        self.checks.run(lambda: self.check_replicas(embeddings))
        cuts = self.cuts(rows_per_sample)
        expected = cuts.total if self.plan.direction == "fan_out" else cuts.sizes[cuts.position]
        if embeddings.shape[0] != expected:
            raise ValueError(
                f"Module {self.plan.source!r} gave {embeddings.shape[0]} rows on rank "
                f"{dist.get_rank()} but its samples have {expected}."
            )
        result = self._cross(embeddings, cuts)
        for listener in self.listeners:
            listener(embeddings, rows_per_sample, result)
        return result

    def _cross(self, embeddings: torch.Tensor, cuts: RowCuts) -> torch.Tensor:
        if self.plan.direction == "fan_in":
            return _Gather.apply(embeddings, cuts, self._group)  # type: ignore[no-any-return,no-untyped-call]
        if self.plan.direction == "fan_out":
            return _Keep.apply(embeddings, cuts, self._group)  # type: ignore[no-any-return,no-untyped-call]
        return embeddings

    @property
    def compares(self) -> bool:
        """Whether the source has tensor-parallel ranks that could differ."""
        return self._tensor_group.size() > 1

    def check_replicas(self, embeddings: torch.Tensor) -> None:
        """Reject outputs that differ between the source's tensor-parallel ranks.

        Only one copy of each replica is used, so a difference would be dropped silently and the
        gradient would be wrong. The check compares three sums over the bits exactly.

        Raises:
            ReplicaMismatchError: on all of these ranks, with module and ranks.
        """
        if not self.compares:
            return
        self.comparisons += 1
        mine = fingerprint(embeddings)
        prints = [torch.empty_like(mine) for _ in range(self._tensor_group.size())]
        dist.all_gather(prints, mine, group=self._tensor_group)
        ranks = dist.get_process_group_ranks(self._tensor_group)
        other = [rank for rank, one in zip(ranks, prints, strict=True) if not one.equal(prints[0])]
        if other:
            raise ReplicaMismatchError(
                f"The output of module {self.plan.source!r} differs between its tensor-parallel "
                f"ranks: rank {ranks[0]} and {_listed(other)} hold different values; every "
                "tensor-parallel rank must end with the same output."
            )


def fingerprint(values: torch.Tensor) -> torch.Tensor:
    """Return [rows, plain sum, sums weighted by row and by column] of a matrix's bits, as int64."""
    bits = values.detach().contiguous().view(torch.int32)
    blocks = torch.split(bits, max(1, _BLOCK // max(1, bits.shape[1])))
    by_row = torch.cat([block.sum(1, dtype=torch.int64) for block in blocks])
    by_column = torch.stack([block.sum(0, dtype=torch.int64) for block in blocks]).sum(0)
    rows = torch.tensor(len(bits), device=bits.device)
    return torch.stack((rows, by_row.sum(), _weighted(by_row), _weighted(by_column)))


_BLOCK = 1 << 18
"""Numbers of a block, 1 MB, that is summed both ways while it is in the cache."""


def _weighted(sums: torch.Tensor) -> torch.Tensor:
    return (sums * torch.arange(1, len(sums) + 1, device=sums.device)).sum()


def _listed(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
