"""Carries rows between modules on disjoint ranks, the way the bridge plan has chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist

from mimokit.engine.collectives import gather_uneven
from mimokit.engine.device import group_timeout, rank_device
from mimokit.engine.pipeline.messages import Mailbox, decode_header, encode_header
from mimokit.engine.pipeline.tags import Tag
from mimokit.plan.disjoint_bridge_routes import Route, Transfer
from mimokit.plan.disjoint_bridge_rows import row_range
from mimokit.plan.types import SampleRange


class RouteCommunicator:
    """Executes one direction of a bridge between disjoint ranks.

    Args:
        route: as planned.
        edge: index of the edge in the stage graph.
        direction: 0 for activations, 1 for gradients.
        held: the samples of the global batch that this rank holds at its end.
        mailbox: of this rank.
        slot: the first of its messages.
    """

    def __init__(
        self,
        route: Route,
        edge: int,
        direction: Literal[0, 1],
        held: SampleRange,
        mailbox: Mailbox,
        slot: int = 0,
    ) -> None:
        """Create the groups of the receiving replicas. Collective over the world."""
        self._route, self._edge, self._direction = route, edge, direction
        self._held, self._mailbox, self._slot = held, mailbox, slot
        self._rank = dist.get_rank()
        self._transfers = _numbered(route.transfers)
        self._group: dist.ProcessGroup | None = None
        self._members: tuple[int, ...] = ()
        for members in route.groups:
            group = dist.new_group(list(members), timeout=group_timeout())
            if self._rank in members:
                self._group, self._members = group, members

    def send(self, rows: torch.Tensor, rows_per_sample: Sequence[int], microbatch: int) -> None:
        """Hand over what this rank is to send of the rows of its samples.

        Args:
            rows: [rows, hidden] of the held samples.
            rows_per_sample: of each held sample.
            microbatch: within the step.

        Raises:
            ValueError: if rows and counts differ.
        """
        counts = torch.tensor(list(rows_per_sample), dtype=torch.int64, device=rows.device)
        for transfer, split in self._transfers:
            if transfer.source_rank != self._rank:
                continue
            samples = (transfer.start, transfer.stop)
            start, stop = row_range(samples, self._held, rows_per_sample, len(rows))
            first = transfer.start - self._held[0]
            mine = counts[first : first + transfer.stop - transfer.start]
            tag = self._tag(microbatch, split)
            self._mailbox.send([rows[start:stop], mine], transfer.destination_rank, tag)

    def receive(self, microbatch: int) -> tuple[torch.Tensor, list[int]]:
        """Wait for the rows of the held samples.

        Returns:
            [rows, hidden] and the rows of each sample.
        """
        rows, counts = self._received(microbatch)
        if self._route.form == "leader" and self._group is not None:
            rows, counts = self._broadcast(rows, counts)
        elif self._route.form == "shards" and self._group is not None:
            assert rows is not None
            assert counts is not None
            rows, counts = self._gather(rows, counts)
        assert rows is not None
        assert counts is not None
        return rows, counts.tolist()

    def _tag(self, microbatch: int, split: int) -> Tag:
        return Tag(self._direction, self._edge, microbatch, self._slot, split)

    def _broadcast(
        self, rows: torch.Tensor | None, counts: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Give what the leader has received to its group, shapes first."""
        leader = next(r for r in self._members if r in self._receivers())
        mine = [] if rows is None or counts is None else [rows, counts]
        header = encode_header(mine).to(_device_of(mine))
        dist.broadcast(header, leader, group=self._group)
        tensors = mine or decode_header(header, header.device)
        for tensor in tensors:
            dist.broadcast(tensor, leader, group=self._group)
        return tensors[0], tensors[1]

    def _received(self, microbatch: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return rows and counts of what other ranks send to this one, samples in order."""
        mine = [(t, split) for t, split in self._transfers if t.destination_rank == self._rank]
        if not mine:
            return None, None
        places = [(t.source_rank, self._tag(microbatch, split)) for t, split in mine]
        if all(split == 0 for _, split in mine):
            rows, counts = self._mailbox.receive_joined(places)
            return rows, counts
        # What one rank sends in several messages is taken one by one, in the order of sending.
        pieces = [self._mailbox.receive(*place) for place in places]
        return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])

    def _gather(
        self, rows: torch.Tensor, counts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Lay the parts of the group's ranks end to end; samples are planned, rows follow."""
        assert self._group is not None
        samples = [self._samples_of(rank) for rank in self._members]
        all_counts = gather_uneven(counts, samples, self._group)
        sizes = [int(part.sum()) for part in torch.split(all_counts, samples)]
        return gather_uneven(rows, sizes, self._group), all_counts

    def _samples_of(self, rank: int) -> int:
        return sum(t.stop - t.start for t in self._route.transfers if t.destination_rank == rank)

    def _receivers(self) -> set[int]:
        return {transfer.destination_rank for transfer in self._route.transfers}


def _device_of(tensors: Sequence[torch.Tensor]) -> torch.device:
    return tensors[0].device if tensors else rank_device()


def _numbered(transfers: Sequence[Transfer]) -> list[tuple[Transfer, int]]:
    """Number the transfers of each pair of ranks."""
    seen: Counter[tuple[int, int]] = Counter()
    numbered = []
    for transfer in transfers:
        pair = (transfer.source_rank, transfer.destination_rank)
        numbered.append((transfer, seen[pair]))
        seen[pair] += 1
    return numbered
