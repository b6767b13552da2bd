"""Sends rows between modules along the routes of the bridge plan.

A message contains the number of rows of each sample, with its header, then the rows, which are
received in place. It counts all samples that both ends have, not only those whose rows it contains;
ranks that gather among themselves then need not exchange counts first. Where each image has a grid,
grids are sent like rows, with the number of images of every sample.

A rank may be at both ends, as an encoder's next to a pipeline: it keeps what it would send itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

from mimokit.engine.collectives import gather_in_place, gather_uneven
from mimokit.engine.colocated.checks import ReplicaCheck
from mimokit.engine.device import group_timeout
from mimokit.engine.part_times import StepPart
from mimokit.engine.pipeline import messages
from mimokit.engine.ragged import Ragged
from mimokit.planning.bridges import routes
from mimokit.planning.message_tags import Tag
from mimokit.planning.types import SampleRange


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

    def take(self, places: Sequence[torch.Tensor]) -> None:
        for place, piece in zip(places, self.pieces, strict=True):
            place.copy_(piece)

    def wait(self) -> None:
        tensors = (self.ahead, *self.pieces)
        self.mailbox.notify(messages.SeenMessage(False, self.rank, self.tag, tensors))


class RouteCommunicator:
    """Executes one direction of a bridge.

    Args:
        direction: 0 for activations, 1 for gradients.
        sent: rank -> its samples of the micro-batch, of the module that sends in this direction.
        taken: the same of the module that receives.
        kinds: number of kinds of rows in a message: rows of the module, and grids of its images.
        replicas: compares the rows of the ranks that have the same ones, before they are sent.
    """

    def __init__(
        self,
        route: routes.Route,
        edge: int,
        direction: Literal[0, 1],
        sent: Mapping[int, SampleRange],
        taken: Mapping[int, SampleRange],
        mailbox: messages.Mailbox,
        slot: int = 0,
        kinds: int = 1,
        replicas: ReplicaCheck | None = None,
    ) -> None:
        """Create the groups of the receiving replicas. Collective over the world."""
        self._route, self._edge, self._direction = route, edge, direction
        self._sent, self._taken, self._mailbox, self._slot = sent, taken, mailbox, slot
        self._kinds, self._replicas = kinds, replicas
        self._rank = dist.get_rank()
        transfers = list(routes.numbered(route.transfers))
        self._outgoing = [sent for sent in transfers if sent[0].source_rank == self._rank]
        self._incoming = [sent for sent in transfers if sent[0].destination_rank == self._rank]
        self._kept: dict[Tag, _KeptMessage] = {}
        self._group: dist.ProcessGroup | None = None
        self._members: tuple[int, ...] = ()
        for members in route.groups:
            group = dist.new_group(list(members), timeout=group_timeout())
            if self._rank in members:
                self._group, self._members = group, members

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
        own = self._sent[self._rank]
        kinds, per_sample = message.kinds(self._kinds)
        counts = torch.tensor(per_sample, dtype=torch.int64)
        for transfer, split in self._outgoing:
            samples = (transfer.start, transfer.stop)
            first, last = routes.counted_samples(transfer.ends, self._sent, self._taken)
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

    def receive(self, microbatch: int) -> Ragged:
        """Wait for the rows of this rank's samples, and the sizes of their items.

        Raises:
            ValueError: two ranks send rows of different widths or types.
        """
        if not self._incoming:
            rows, counts = self._from_leader()
            return Ragged.of_kinds(rows, counts.tolist())
        expected = [self._expect(transfer, split, microbatch) for transfer, split in self._incoming]
        described = [arriving.described() for arriving in expected]
        like = [_same_kind(parts) for parts in zip(*described, strict=True)]
        counts = self._all_counts(
            [arriving.ahead.reshape(self._kinds, -1) for arriving in expected]
        )
        per_sample = counts.tolist()
        rows = [
            kind.new_empty((sum(numbers), *kind.shape[1:]), device=self._mailbox.device)
            for kind, numbers in zip(like, per_sample, strict=True)
        ]
        for arriving, (transfer, _) in zip(expected, self._incoming, strict=True):
            spans = self._spans((transfer.start, transfer.stop), per_sample)
            arriving.take(
                [kind[start:stop] for kind, (start, stop) in zip(rows, spans, strict=True)]
            )
        for arriving in expected:
            arriving.wait()
        self._share(rows, counts)
        return Ragged.of_kinds(rows, per_sample)

    def _spans(
        self, samples: SampleRange, per_sample: Sequence[Sequence[int]]
    ) -> list[routes.RowRange]:
        own = self._taken[self._rank]
        return [routes.row_range(samples, own, numbers) for numbers in per_sample]

    def _tag(self, microbatch: int, split: int) -> Tag:
        return Tag(self._direction, self._edge, microbatch, self._slot, split)

    def _expect(
        self, transfer: routes.Transfer, split: int, microbatch: int
    ) -> messages.Arriving | _KeptMessage:
        first, last = routes.counted_samples(transfer.ends, self._sent, self._taken)
        tag = self._tag(microbatch, split)
        if not transfer.moves:
            return self._kept.pop(tag)
        return self._mailbox.expect(transfer.source_rank, tag, self._kinds * (last - first))

    def _all_counts(self, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the rows of all own samples; ranks that received a part gather the rest."""
        counts = torch.cat(list(pieces), dim=1)
        start, stop = self._taken[self._rank]
        if counts.shape[1] == stop - start:
            return counts
        assert self._group is not None
        first = routes.counted_samples(self._incoming[0][0].ends, self._sent, self._taken)[0]
        begin, end = self._part(self._rank)
        sizes = [last - first for first, last in map(self._part, self._members)]
        received = counts[:, begin - first : end - first].T.contiguous()
        # Small: until it has arrived, ranks of the group wait for the messages of others.
        with self._mailbox.times.part(StepPart.PEER):
            return gather_uneven(received, sizes, self._group).T

    def _part(self, rank: int) -> SampleRange:
        transfers = [t for t in self._route.transfers if t.destination_rank == rank]
        return transfers[0].start, transfers[-1].stop

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
        parts = [self._spans(self._part(rank), per_sample) for rank in self._members]
        for kind, spans in zip(rows, zip(*parts, strict=True), strict=True):
            gather_in_place(kind, [stop - start for start, stop in spans], self._group)

    def _from_leader(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        start, stop = self._taken[self._rank]
        about = messages.room_for_header(self._kinds * (stop - start))
        leader = next(r for r in self._members if self._receives(r))
        with self._mailbox.times.part(StepPart.PEER):
            dist.broadcast(about, leader, group=self._group)
            rows = messages.decode_header(about, self._mailbox.device)
        with self._mailbox.times.part(StepPart.GROUP):
            for kind in rows:
                dist.broadcast(kind, leader, group=self._group)
        return rows, about[len(messages.room_for_header()) :].reshape(self._kinds, -1)

    def _receives(self, rank: int) -> bool:
        return any(transfer.destination_rank == rank for transfer in self._route.transfers)


def _same_kind(described: Sequence[torch.Tensor]) -> torch.Tensor:
    first = described[0]
    for tensor in described[1:]:
        if tensor.shape[1:] != first.shape[1:] or tensor.dtype != first.dtype:
            raise ValueError(
                f"Pieces of {tuple(first.shape)} in {first.dtype} and {tuple(tensor.shape)} in "
                f"{tensor.dtype} cannot be laid end to end."
            )
    return first
