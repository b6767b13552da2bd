"""Carries rows between modules on disjoint ranks, the way the bridge plan has chosen.

A message holds how many rows each sample has, then the rows. Sizes of the first are known from the
plan, so it is asked for together with the header; the rows then arrive where they are to lie. It
counts all samples that both ends hold, not only those whose rows it brings, so that ranks which
gather among themselves need not ask each other for counts first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.distributed as dist

from mimokit.engine.collectives import gather_in_place, gather_uneven
from mimokit.engine.device import group_timeout, rank_device
from mimokit.engine.pipeline.messages import Arriving, Mailbox, decode_header, encode_header
from mimokit.engine.pipeline.tags import Tag
from mimokit.plan.disjoint_bridge_routes import Route, Transfer, counted_samples, numbered
from mimokit.plan.disjoint_bridge_rows import row_range
from mimokit.plan.types import SampleRange


class RouteCommunicator:
    """Executes one direction of a bridge between disjoint ranks.

    Args:
        route: as planned.
        edge: index of the edge in the stage graph.
        direction: 0 for activations, 1 for gradients.
        samples: rank -> what it holds of the global batch, for the ranks of both ends.
        mailbox: of this rank.
        slot: the first of its messages.
    """

    def __init__(
        self,
        route: Route,
        edge: int,
        direction: Literal[0, 1],
        samples: Mapping[int, SampleRange],
        mailbox: Mailbox,
        slot: int = 0,
    ) -> None:
        """Create the groups of the receiving replicas. Collective over the world."""
        self._route, self._edge, self._direction = route, edge, direction
        self._samples, self._mailbox, self._slot = samples, mailbox, slot
        self._rank = dist.get_rank()
        transfers = list(numbered(route.transfers))
        self._outgoing = [one for one in transfers if one[0].source_rank == self._rank]
        self._incoming = [one for one in transfers if one[0].destination_rank == self._rank]
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
        held = self._samples[self._rank]
        counts = torch.tensor(list(rows_per_sample), dtype=torch.int64, device=rows.device)
        for transfer, split in self._outgoing:
            samples = (transfer.start, transfer.stop)
            start, stop = row_range(samples, held, rows_per_sample, len(rows))
            first, last = counted_samples(transfer.ends, self._samples)
            message = [counts[first - held[0] : last - held[0]], rows[start:stop]]
            self._mailbox.send(message, transfer.destination_rank, self._tag(microbatch, split))

    def receive(self, microbatch: int) -> tuple[torch.Tensor, list[int]]:
        """Wait for the rows of the held samples.

        Returns:
            [rows, hidden] and the rows of each sample.

        Raises:
            ValueError: two ranks send rows of different widths or types.
        """
        if not self._incoming:
            rows, counts = self._from_leader()
            return rows, counts.tolist()
        expected = [self._expect(transfer, split, microbatch) for transfer, split in self._incoming]
        like = _same_kind([arriving.described()[1] for arriving, _ in expected])
        counts = self._all_counts([given for _, given in expected])
        per_sample = counts.tolist()
        rows = torch.empty(
            (sum(per_sample), *like.shape[1:]), dtype=like.dtype, device=counts.device
        )
        own = self._samples[self._rank]
        for (arriving, _), (transfer, _) in zip(expected, self._incoming, strict=True):
            start, stop = row_range((transfer.start, transfer.stop), own, per_sample, len(rows))
            arriving.take([rows[start:stop]])
        for arriving, _ in expected:
            arriving.wait()
        self._share(rows, counts)
        return rows, per_sample

    def _tag(self, microbatch: int, split: int) -> Tag:
        return Tag(self._direction, self._edge, microbatch, self._slot, split)

    def _expect(
        self, transfer: Transfer, split: int, microbatch: int
    ) -> tuple[Arriving, torch.Tensor]:
        """Ask for a message and the counts in it."""
        first, last = counted_samples(transfer.ends, self._samples)
        counts = torch.zeros(last - first, dtype=torch.int64, device=rank_device())
        tag = self._tag(microbatch, split)
        return self._mailbox.expect(transfer.source_rank, tag, counts), counts

    def _all_counts(self, given: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the rows of every held sample; ranks that were told a part ask each other."""
        counts = torch.cat(list(given))
        start, stop = self._samples[self._rank]
        if len(counts) == stop - start:
            return counts
        assert self._group is not None
        told = counted_samples(self._incoming[0][0].ends, self._samples)[0]
        begin, end = self._part(self._rank)
        sizes = [last - first for first, last in map(self._part, self._members)]
        return gather_uneven(counts[begin - told : end - told], sizes, self._group)

    def _part(self, rank: int) -> SampleRange:
        """Return the samples whose rows a rank receives from other modules."""
        mine = [t for t in self._route.transfers if t.destination_rank == rank]
        return mine[0].start, mine[-1].stop

    def _share(self, rows: torch.Tensor, counts: torch.Tensor) -> None:
        """Pass on within the group what came in."""
        if self._group is None:
            return
        if self._route.form == "leader":
            about = torch.cat([encode_header([rows]).to(counts.device), counts])
            dist.broadcast(about, self._rank, group=self._group)
            dist.broadcast(rows, self._rank, group=self._group)
            return
        own = self._samples[self._rank]
        per_sample = counts.tolist()
        spans = [row_range(self._part(r), own, per_sample, len(rows)) for r in self._members]
        gather_in_place(rows, [stop - start for start, stop in spans], self._group)

    def _from_leader(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Take what the leader of the group has received."""
        start, stop = self._samples[self._rank]
        header = self._mailbox.room_for_header()
        about = torch.cat([header, header.new_zeros(stop - start)])
        leader = next(r for r in self._members if self._receives(r))
        dist.broadcast(about, leader, group=self._group)
        (rows,) = decode_header(about, about.device)
        dist.broadcast(rows, leader, group=self._group)
        return rows, about[len(header) :]

    def _receives(self, rank: int) -> bool:
        return any(transfer.destination_rank == rank for transfer in self._route.transfers)


def _same_kind(described: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the first of some tensors, all of which have its width and type.

    Raises:
        ValueError: they have not.
    """
    first = described[0]
    for one in described[1:]:
        if one.shape[1:] != first.shape[1:] or one.dtype != first.dtype:
            raise ValueError(
                f"Pieces of {tuple(first.shape)} in {first.dtype} and {tuple(one.shape)} in "
                f"{one.dtype} cannot be laid end to end."
            )
    return first
