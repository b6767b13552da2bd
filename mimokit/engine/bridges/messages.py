"""Non-blocking messages of tensors between two ranks, with a header that describes the tensors.

A receive buffer of the wrong size aborts a gloo process, and one of the wrong type is filled
silently. Therefore a header of fixed size contains the number, types and shapes of the tensors.

Headers and counts are numbers for Python: they lie on the CPU and travel by gloo, whatever the
device of the rank is. On a GPU every look at them would wait for the work that is queued.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from mimokit.engine.part_times import UNTIMED, PartTimes, StepPart
from mimokit.engine.ragged import FIELDS, ON_HOST, Ragged
from mimokit.planning.message_order import Channel
from mimokit.planning.message_tags import Tag

_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)
_MOST_DIMENSIONS = 4
_MOST_TENSORS = 6
_HEADER_SIZE = 2 + _MOST_TENSORS * (2 + _MOST_DIMENSIONS)


def encode_header(tensors: Sequence[torch.Tensor], fields: Sequence[str] = ()) -> torch.Tensor:
    """Return [tensors, fields, then per tensor: type, dimensions, sizes], int64, of a fixed size.

    Args:
        fields: of a `Ragged`, whose parts the tensors are.

    Raises:
        ValueError: if there are too many tensors or dimensions, or a type is unknown.
    """
    if len(tensors) > _MOST_TENSORS:
        raise ValueError(f"A message has at most {_MOST_TENSORS} tensors, not {len(tensors)}.")
    values = [len(tensors), sum(1 << FIELDS.index(name) for name in fields)]
    for tensor in tensors:
        if tensor.dim() > _MOST_DIMENSIONS or tensor.dtype not in _TYPES:
            raise ValueError(
                f"A tensor of type {tensor.dtype} and shape {tuple(tensor.shape)} cannot be sent."
            )
        padding = [0] * (_MOST_DIMENSIONS - tensor.dim())
        values += [_TYPES.index(tensor.dtype), tensor.dim(), *tensor.shape, *padding]
    values += [0] * (_HEADER_SIZE - len(values))
    return torch.tensor(values, dtype=torch.int64)


def decode_header(header: torch.Tensor, device: torch.device) -> list[torch.Tensor]:
    """Return empty tensors of a device with the types and shapes in a header."""
    values = header.tolist()
    tensors = []
    for number in range(values[0]):
        begin = 2 + number * (2 + _MOST_DIMENSIONS)
        kind, dimensions = values[begin], values[begin + 1]
        shape = values[begin + 2 : begin + 2 + dimensions]
        tensors.append(torch.empty(shape, dtype=_TYPES[kind], device=device))
    return tensors


def fields_in(header: torch.Tensor) -> list[str]:
    """Return the fields of a `Ragged` that a header names; none where it is of other tensors."""
    return [name for bit, name in enumerate(FIELDS) if int(header[1]) >> bit & 1]


def described(header: torch.Tensor) -> Ragged:
    """Return a `Ragged` on "meta" with the types and shapes in a header; its numbers are 0."""
    tensors = decode_header(header, torch.device("meta"))
    named = dict(zip(fields_in(header), tensors, strict=True))
    zeros = {name: torch.zeros_like(named[name], device="cpu") for name in ON_HOST if name in named}
    return Ragged.of_parts(named | zeros)


def room_for_header(ahead: int = 0) -> torch.Tensor:
    """Return a buffer for a header and the integers after it."""
    return torch.zeros(_HEADER_SIZE + ahead, dtype=torch.int64)


@dataclass(frozen=True)
class SeenMessage:
    """A message as seen by its sender or its receiver.

    Attributes:
        sent: this rank sends it; False: this rank receives it.
        fields: of a `Ragged`, whose parts the tensors are.
    """

    sent: bool
    peer: int
    tag: Tag
    tensors: tuple[torch.Tensor, ...]
    fields: tuple[str, ...] = ()


class Arriving:
    """A message that is being received: first its header, then its tensors."""

    def __init__(self, mailbox: Mailbox, rank: int, tag: Tag, ahead: int) -> None:
        self._mailbox, self._rank, self._tag = mailbox, rank, tag
        self._header = room_for_header(ahead)
        self._tensors = [self.ahead] if ahead else []
        self._works = [mailbox.ask_for(self._header, rank, tag)]

    @property
    def ahead(self) -> torch.Tensor:
        """The integers sent with the header, int64 [ahead]; valid once the header has arrived."""
        return self._header[_HEADER_SIZE:]

    @property
    def fields(self) -> list[str]:
        """Those of a `Ragged`, whose parts are being received."""
        return fields_in(self._header)

    def described(self) -> list[torch.Tensor]:
        """Wait for the header; return tensors on "meta" with the types and shapes to receive."""
        with self._mailbox.times.part(StepPart.PEER):
            self._finish()
            return decode_header(self._header, torch.device("meta"))

    def take(self, places: Sequence[torch.Tensor]) -> None:
        """Start receiving the tensors into the given ones and return."""
        for slot, place in enumerate(places, start=self._tag.slot + 1):
            if place.numel():
                tag = replace(self._tag, slot=slot)
                self._works.append(self._mailbox.ask_for(place, self._rank, tag))
        self._tensors.extend(places)

    def wait(self) -> None:
        """Wait until all tensors have arrived, then call the listeners."""
        self._finish()
        self._mailbox.notify(
            SeenMessage(False, self._rank, self._tag, tuple(self._tensors), tuple(self.fields))
        )

    def _finish(self) -> None:
        for work in self._works:
            work.wait()
        self._works.clear()


class Mailbox:
    """Sends and receives the messages of this rank; sent tensors are kept until they have arrived.

    Args:
        group: process group of the messages, by default the world. Messages that no rank received
            are lost with their group; in the world the next model would receive them.
        channels: the group of the messages of a channel, in place of the one above. NCCL
            ignores tags, and lets a message of a group wait for those before it: messages that may
            overtake each other, or go the other way, need groups of their own.

    Attributes:
        listeners: called with every message: before it is sent, or after it has arrived.
        noted: for debugging: a list that collects ("sent" or "received", other rank, tag) of every
            tensor; None collects nothing.
        times: of the wait for peers: until a header has arrived, and until sent messages are taken.
    """

    def __init__(
        self,
        device: torch.device,
        group: dist.ProcessGroup | None = None,
        channels: Mapping[Channel, dist.ProcessGroup] | None = None,
    ) -> None:
        self.listeners: list[Callable[[SeenMessage], None]] = []
        self.noted: list[tuple[str, int, Tag]] | None = None
        self.times: PartTimes = UNTIMED
        self.device = device
        self._group = group
        self._channels = channels or {}
        self._in_flight: list[tuple[dist.Work, torch.Tensor]] = []

    def send(
        self,
        tensors: Sequence[torch.Tensor],
        rank: int,
        tag: Tag,
        ahead: torch.Tensor | None = None,
        fields: Sequence[str] = (),
    ) -> None:
        """Start sending a message and return.

        Args:
            ahead: int64 [n], on the CPU, sent in one piece with the header; the receiver must know
                n.
            fields: of a `Ragged`, whose parts the tensors are.

        Raises:
            ValueError: if the header cannot describe the message, or a field of the tag overflows.
        """
        first = [] if ahead is None else [ahead]
        self.notify(SeenMessage(True, rank, tag, (*first, *tensors), tuple(fields)))
        header = torch.cat([encode_header(tensors, fields), *first])
        self._start_sending(header, rank, tag)
        for slot, tensor in enumerate(tensors, start=tag.slot + 1):
            sent = tensor.detach().contiguous()
            if sent.numel():
                self._start_sending(sent, rank, replace(tag, slot=slot))

    def send_message(self, message: Ragged, rank: int, tag: Tag) -> None:
        """Start sending the message of a stage and return."""
        parts = message.parts()
        self.send(list(parts.values()), rank, tag, fields=list(parts))

    def send_shapes(self, message: Ragged, rank: int, tag: Tag) -> None:
        """Start sending types and shapes of a message, which may be on "meta", and return."""
        parts = message.parts()
        self._start_sending(encode_header(list(parts.values()), list(parts)), rank, tag)

    def receive(self, rank: int, tag: Tag) -> list[torch.Tensor]:
        """Wait for a message and return its tensors."""
        return self._taken(self.expect(rank, tag))

    def receive_message(self, rank: int, tag: Tag) -> Ragged:
        """Wait for the message of a stage."""
        arriving = self.expect(rank, tag)
        tensors = self._taken(arriving)
        return Ragged.of_parts(dict(zip(arriving.fields, tensors, strict=True)))

    def _taken(self, arriving: Arriving) -> list[torch.Tensor]:
        expected = arriving.described()
        on_host = sum(name in ON_HOST for name in arriving.fields)
        kept = len(expected) - on_host  # which `FIELDS` has last
        places = [
            torch.empty_like(tensor, device=self.device if number < kept else "cpu")
            for number, tensor in enumerate(expected)
        ]
        arriving.take(places)
        arriving.wait()
        return places

    def expect(self, rank: int, tag: Tag, ahead: int = 0) -> Arriving:
        """Start receiving a message and return; `ahead` integers come with the header."""
        return Arriving(self, rank, tag, ahead)

    def notify(self, message: SeenMessage) -> None:
        """Call the listeners with a message."""
        for listener in self.listeners:
            listener(message)

    def receive_header(self, rank: int, tag: Tag) -> torch.Tensor:
        """Wait for the header of a message, or for the shapes sent by `send_shapes`."""
        header = room_for_header()
        self.ask_for(header, rank, tag).wait()
        return header

    def _start_sending(self, tensor: torch.Tensor, rank: int, tag: Tag) -> None:
        work = dist.isend(tensor, rank, group=self._group_of(tag), tag=tag.encode())
        assert work is not None
        self._in_flight.append((work, tensor))
        self._note("sent", rank, tag)

    def ask_for(self, tensor: torch.Tensor, rank: int, tag: Tag) -> dist.Work:
        """Start receiving one tensor of a message and return."""
        work = dist.irecv(tensor, rank, group=self._group_of(tag), tag=tag.encode())
        assert work is not None
        self._note("received", rank, tag)
        return work

    def _group_of(self, tag: Tag) -> dist.ProcessGroup | None:
        return self._channels.get((tag.edge, tag.direction), self._group)

    def _note(self, what: str, peer: int, tag: Tag) -> None:
        if self.noted is not None:
            self.noted.append((what, peer, tag))

    def wait(self) -> None:
        """Wait until all sent messages have arrived."""
        with self.times.part(StepPart.PEER):
            for work, _ in self._in_flight:
                work.wait()
            self._in_flight.clear()
