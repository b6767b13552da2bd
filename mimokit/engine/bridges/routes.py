"""Carries rows between modules along the routes of the bridge plan, in every mode.

A message contains the number of rows of each sample, with its header, then the rows, which are
received in place. It counts all samples that both ends have, not only those whose rows it contains;
ranks that gather among themselves then need not exchange counts first. Where each image has a grid,
grids are sent like rows, with the number of images of every sample.

A rank may be at both ends, as where modules share their ranks: it keeps what it would send itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

from mimokit.engine.bridges import messages
from mimokit.engine.bridges.checks import ReplicaCheck
from mimokit.engine.collectives import gather_in_place, gather_uneven
from mimokit.engine.device import group_timeout
from mimokit.engine.part_times import StepPart
from mimokit.engine.ragged import Ragged
from mimokit.planning.bridges import routes
from mimokit.planning.message_tags import Tag
from mimokit.planning.types import Bridge, SampleRange

Direction = Literal[0, 1]
"""Of activations, and of gradients."""


@dataclass
class _KeptMessage:
    """A message of a rank to itself, which is copied; it is taken as one that is `Arriving`.

    Attributes:
        ahead: the counts, which would be sent with the header.
    """

    mailbox: messages.Mailbox
    rank: int
    tag: Tag
    ahead: torch.Tensor
    pieces: Sequence[torch.Tensor]

    def described(self) -> list[torch.Tensor]:
        return [torch.empty_like(piece, device="meta") for piece in self.pieces]

    def rows(self) -> list[torch.Tensor]:
        return list(self.pieces)

    def take(self, places: Sequence[torch.Tensor]) -> None:
        for place, piece in zip(places, self.rows(), strict=True):
            place.copy_(piece)

    def wait(self) -> None:
        tensors = (self.ahead, *self.pieces)
        self.mailbox.notify(messages.SeenMessage(False, self.rank, self.tag, tensors))


class RouteCommunicator:
    """Executes one direction of a bridge.

    Args:
        sent: rank -> its samples of the micro-batch, of the module that sends in this direction.
        taken: the same of the module that receives.
        kinds: number of kinds of rows in a message: rows of the module, and grids of its images.
        replicas: compares the rows of the ranks that have the same ones, before they are sent.
    """

    def __init__(
        self,
        route: routes.Route,
        edge: int,
        direction: Direction,
        sent: Mapping[int, SampleRange],
        taken: Mapping[int, SampleRange],
        mailbox: messages.Mailbox,
        slot: int = 0,
        kinds: int = 1,
        replicas: ReplicaCheck | None = None,
    ) -> None:
        """Create the groups of the receiving replicas. Collective over the world."""
        self._route, self._edge, self._direction = route, edge, direction
        self._sent_by, self._taken_by, self._mailbox, self._slot = sent, taken, mailbox, slot
        self._kinds, self._replicas = kinds, replicas
        self._rank = dist.get_rank()
        own = None if route.kept is None else route.kept[self._rank]
        kept = [] if own is None else [routes.Transfer(self._rank, self._rank, *own)]
        transfers = list(routes.numbered([*route.transfers, *kept]))
        self._outgoing = [sent for sent in transfers if sent[0].source_rank == self._rank]
        self._incoming = [sent for sent in transfers if sent[0].destination_rank == self._rank]
        self._kept: dict[Tag, _KeptMessage] = {}
        self._group: dist.ProcessGroup | None = None
        self._parts: dict[int, SampleRange] = {}
        for members in route.groups:
            group = dist.new_group(list(members), timeout=group_timeout())
            if self._rank in members:
                self._group, self._parts = group, _parts_of(route, members)

    def send(self, message: Ragged, microbatch: int) -> None:
        """Start sending the rows of this rank's samples that other ranks need.

        Args:
            message: the rows of this rank's samples, and the sizes of their items.

        Raises:
            ReplicaMismatchError: other ranks have other rows of the same samples.
            ValueError: if rows and counts differ.
        """
        if self._replicas is not None:
            self._replicas.check_if_due(message.tensor)
        if not self._outgoing:
            return
        own = self._sent_by[self._rank]
        kinds, per_sample = message.kinds(self._kinds)
        counts = torch.tensor(per_sample, dtype=torch.int64)
        for transfer, split in self._outgoing:
            samples = (transfer.start, transfer.stop)
            first, last = routes.counted_samples(transfer.ends, self._sent_by, self._taken_by)
            sent = counts[:, first - own[0] : last - own[0]].flatten()
            pieces = []
            for rows, numbers in zip(kinds, per_sample, strict=True):
                start, stop = routes.row_range(samples, own, numbers, len(rows))
                pieces.append(rows[start:stop])
            tag = self._tag(microbatch, split)
            if transfer.moves:
                self._mailbox.send(pieces, transfer.destination_rank, tag, sent)
            else:
                self._mailbox.notify(messages.SeenMessage(True, self._rank, tag, (sent, *pieces)))
                self._kept[tag] = _KeptMessage(self._mailbox, self._rank, tag, sent, pieces)

    def receive(self, microbatch: int, known: Sequence[int] | None = None) -> Ragged:
        """Wait for the rows of this rank's samples, and the sizes of their items.

        Args:
            known: rows of each of these samples, which ranks that gather then need not exchange.

        Raises:
            ValueError: two ranks send rows of different widths or types.
        """
        if not self._incoming:
            rows, counts = self._from_leader()
            return Ragged.of_kinds(rows, counts.tolist())
        expected = [self._expect(transfer, split, microbatch) for transfer, split in self._incoming]
        described = [arriving.described() for arriving in expected]
        like = [_same_kind(parts) for parts in zip(*described, strict=True)]
        counts = torch.cat([arriving.ahead.reshape(self._kinds, -1) for arriving in expected], 1)
        if known is not None and self._kinds == 1:
            counts = torch.tensor([known])
        else:
            counts = self._all_counts(counts)
        per_sample = counts.tolist()
        rows = self._rows_taken(expected, like, per_sample)
        for arriving in expected:
            arriving.wait()
        self._share(rows, counts)
        return Ragged.of_kinds(rows, per_sample)

    def _rows_taken(
        self,
        expected: Sequence[messages.Arriving | _KeptMessage],
        like: Sequence[torch.Tensor],
        per_sample: Sequence[Sequence[int]],
    ) -> list[torch.Tensor]:
        first, *others = expected
        if isinstance(first, _KeptMessage) and not others and self._group is None:
            return first.rows()  # all that this rank takes, so that nothing is copied
        rows = [
            kind.new_empty((sum(numbers), *kind.shape[1:]), device=self._mailbox.device)
            for kind, numbers in zip(like, per_sample, strict=True)
        ]
        for arriving, (transfer, _) in zip(expected, self._incoming, strict=True):
            spans = self._spans((transfer.start, transfer.stop), per_sample)
            arriving.take(
                [kind[start:stop] for kind, (start, stop) in zip(rows, spans, strict=True)]
            )
        return rows

    def _spans(
        self, samples: SampleRange, per_sample: Sequence[Sequence[int]]
    ) -> list[routes.RowRange]:
        own = self._taken_by[self._rank]
        return [routes.row_range(samples, own, numbers) for numbers in per_sample]

    def _tag(self, microbatch: int, split: int) -> Tag:
        return Tag(self._direction, self._edge, microbatch, self._slot, split)

    def _expect(
        self, transfer: routes.Transfer, split: int, microbatch: int
    ) -> messages.Arriving | _KeptMessage:
        first, last = routes.counted_samples(transfer.ends, self._sent_by, self._taken_by)
        tag = self._tag(microbatch, split)
        if not transfer.moves:
            return self._kept.pop(tag)
        return self._mailbox.expect(transfer.source_rank, tag, self._kinds * (last - first))

    def gather_counts(self, counts: torch.Tensor) -> torch.Tensor:
        """Return the counts of all samples of a group that gathers: [kinds, own] -> [kinds, all].

        Collective over the group.
        """
        assert self._group is not None
        sizes = [stop - start for start, stop in self._parts.values()]
        # Small: until it has arrived, ranks of the group wait for the messages of others.
        with self._mailbox.times.part(StepPart.PEER):
            return gather_uneven(counts.T.contiguous(), sizes, self._group).T

    def _all_counts(self, counts: torch.Tensor) -> torch.Tensor:
        start, stop = self._taken_by[self._rank]
        if counts.shape[1] == stop - start:
            return counts
        first, _ = routes.counted_samples(self._incoming[0][0].ends, self._sent_by, self._taken_by)
        begin, end = self._parts[self._rank]
        return self.gather_counts(counts[:, begin - first : end - first])

    def _share(self, rows: Sequence[torch.Tensor], counts: torch.Tensor) -> None:
        if self._group is None:
            return
        with self._mailbox.times.part(StepPart.GROUP):
            if self._route.form == "leader":
                self._lead(rows, counts)
            else:
                self._share_parts(rows, counts.tolist())

    def _lead(self, rows: Sequence[torch.Tensor], counts: torch.Tensor) -> None:
        about = torch.cat([messages.encode_header(rows), counts.flatten()])
        dist.broadcast(about, self._rank, group=self._group)
        for kind in rows:
            dist.broadcast(kind, self._rank, group=self._group)

    def _share_parts(
        self, rows: Sequence[torch.Tensor], per_sample: Sequence[Sequence[int]]
    ) -> None:
        assert self._group is not None
        parts = [self._spans(part, per_sample) for part in self._parts.values()]
        for kind, spans in zip(rows, zip(*parts, strict=True), strict=True):
            gather_in_place(kind, [stop - start for start, stop in spans], self._group)

    def _from_leader(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        start, stop = self._taken_by[self._rank]
        about = messages.room_for_header(self._kinds * (stop - start))
        leader = next(rank for rank, (first, last) in self._parts.items() if last > first)
        with self._mailbox.times.part(StepPart.PEER):
            dist.broadcast(about, leader, group=self._group)
            rows = messages.decode_header(about, self._mailbox.device)
        with self._mailbox.times.part(StepPart.GROUP):
            for kind in rows:
                dist.broadcast(kind, leader, group=self._group)
        return rows, about[len(messages.room_for_header()) :].reshape(self._kinds, -1)


def both_ways(
    bridge: Bridge,
    ends: tuple[Mapping[int, SampleRange], Mapping[int, SampleRange]],
    mailbox: messages.Mailbox,
    edge: int = 0,
    slot: int = 0,
    kinds: int = 1,
    replicas: ReplicaCheck | None = None,
) -> tuple[RouteCommunicator, RouteCommunicator]:
    """Return what executes a bridge, for activations and for gradients. Collective over the world.

    Args:
        ends: rank -> its samples of the source, and of the destination.
    """
    near, far = ends
    return (
        RouteCommunicator(bridge.forward, edge, 0, near, far, mailbox, slot, kinds, replicas),
        RouteCommunicator(bridge.backward, edge, 1, far, near, mailbox, slot),
    )


def _parts_of(route: routes.Route, members: Sequence[int]) -> dict[int, SampleRange]:
    """Return the samples that each rank of a group receives itself, in the group's order."""
    if route.kept is not None:
        return {rank: route.kept[rank] for rank in members}
    ends: dict[int, list[int]] = {rank: [] for rank in members}
    for transfer in route.transfers:
        if transfer.destination_rank in ends:
            ends[transfer.destination_rank] += [transfer.start, transfer.stop]
    return {rank: (min(own, default=0), max(own, default=0)) for rank, own in ends.items()}


def _same_kind(described: Sequence[torch.Tensor]) -> torch.Tensor:
    first = described[0]
    for tensor in described[1:]:
        if tensor.shape[1:] != first.shape[1:] or tensor.dtype != first.dtype:
            raise ValueError(
                f"Pieces of {tuple(first.shape)} in {first.dtype} and {tuple(tensor.shape)} in "
                f"{tensor.dtype} cannot be laid end to end."
            )
    return first
