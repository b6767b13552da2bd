"""Tensors between two ranks: sent without waiting, their shapes known before a receive is posted.

A receive buffer of the wrong size aborts a gloo process, and one of the wrong type is filled
without a word. So every message begins with a header of fixed size that names count, types and
shapes of its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist

from mimokit.planning.message_tags import Tag

_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)
_MOST_DIMENSIONS = 4
_MOST_TENSORS = 6
_HEADER_SIZE = 2 + _MOST_TENSORS * (2 + _MOST_DIMENSIONS)


@dataclass
class StageMessage:
    """What one stage hands to the next for a micro-batch.

    Attributes:
        rows: hidden states or rows, then what else each kind of them needs: sizes, positions.
        counts: numbers per sample: rows or items, then the images whose sizes are among `rows`.
    """

    rows: list[torch.Tensor]
    counts: list[list[int]] = field(default_factory=list)


def encode_header(tensors: Sequence[torch.Tensor], counts: int = 0) -> torch.Tensor:
    """Return [tensors, counts, then per tensor: type, dimensions, sizes], int64, of a fixed size.

    Args:
        tensors: of the message.
        counts: how many of them, at the end, are counts of a `StageMessage`.

    Raises:
        ValueError: if there are too many tensors or dimensions, or a type is unknown.
    """
    if len(tensors) > _MOST_TENSORS:
        raise ValueError(f"A message has at most {_MOST_TENSORS} tensors, not {len(tensors)}.")
    values = [len(tensors), counts]
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
    """Return empty tensors of the types and shapes that a header names."""
    values = header.tolist()
    tensors = []
    for number in range(values[0]):
        begin = 2 + number * (2 + _MOST_DIMENSIONS)
        kind, dimensions = values[begin], values[begin + 1]
        shape = values[begin + 2 : begin + 2 + dimensions]
        tensors.append(torch.empty(shape, dtype=_TYPES[kind], device=device))
    return tensors


@dataclass(frozen=True)
class Message:
    """A message as one end sees it.

    Attributes:
        sent: handed over by this rank; False: received.
        peer: the rank at the other end.
        tag: of its header.
        tensors: what it carries.
        counts: how many of the tensors, at the end, are counts of a `StageMessage`.
    """

    sent: bool
    peer: int
    tag: Tag
    tensors: tuple[torch.Tensor, ...]
    counts: int = 0


class Arriving:
    """A message that was asked for: first what it holds, then, once it has a place, the content.

    Args:
        mailbox: of this rank.
        rank: that sends.
        tag: of the header.
        ahead: integers that come with the header.
    """

    def __init__(self, mailbox: Mailbox, rank: int, tag: Tag, ahead: int) -> None:
        self._mailbox, self._rank, self._tag = mailbox, rank, tag
        self._header = mailbox.room_for_header(ahead)
        self._tensors = [self.ahead] if ahead else []
        self._works = [mailbox.ask_for(self._header, rank, tag)]

    @property
    def ahead(self) -> torch.Tensor:
        """The integers that come with the header, int64 [ahead]; there once it is."""
        return self._header[_HEADER_SIZE:]

    @property
    def counts(self) -> int:
        """How many of the tensors, at the end, are counts of a `StageMessage`."""
        return int(self._header[1])

    def described(self) -> list[torch.Tensor]:
        """Wait for the header; return tensors without data that are like those to be taken."""
        self._finish()
        return decode_header(self._header, torch.device("meta"))

    def take(self, places: Sequence[torch.Tensor]) -> None:
        """Ask for the tensors, each into its place, and go on."""
        for slot, place in enumerate(places, start=self._tag.slot + 1):
            if place.numel():
                tag = replace(self._tag, slot=slot)
                self._works.append(self._mailbox.ask_for(place, self._rank, tag))
        self._tensors.extend(places)

    def wait(self) -> None:
        """Wait until all is there, and tell the listeners."""
        self._finish()
        self._mailbox.tell(Message(False, self._rank, self._tag, tuple(self._tensors), self.counts))

    def _finish(self) -> None:
        for work in self._works:
            work.wait()
        self._works.clear()


class Mailbox:
    """Messages of this rank. What was handed over is kept until it has arrived.

    Args:
        device: where tensors lie.
        group: that they cross in; the world by default. What nobody took is lost with its group:
            in the world the next model would take it for its own.

    Attributes:
        listeners: told of every message, on sending before it is handed over, on receiving once
            it is there.
        noted: for debugging: ("sent" or "received", other rank, tag) of everything that crosses,
            one by one, where a list is given.
    """

    def __init__(self, device: torch.device, group: dist.ProcessGroup | None = None) -> None:
        self.listeners: list[Callable[[Message], None]] = []
        self.noted: list[tuple[str, int, Tag]] | None = None
        self._device = device
        self._group = group
        self._under_way: list[tuple[dist.Work, torch.Tensor]] = []

    def send(
        self,
        tensors: Sequence[torch.Tensor],
        rank: int,
        tag: Tag,
        ahead: torch.Tensor | None = None,
        counts: int = 0,
    ) -> None:
        """Hand a message over and go on.

        Args:
            tensors: what it carries.
            rank: that receives.
            tag: of its header.
            ahead: int64 [n] where the receiver knows n: it goes in one piece with the header.
            counts: how many of the tensors, at the end, are counts of a `StageMessage`.

        Raises:
            ValueError: if the message cannot be described, or a field of the tag overflows.
        """
        first = [] if ahead is None else [ahead]
        self.tell(Message(True, rank, tag, (*first, *tensors), counts))
        header = torch.cat([encode_header(tensors, counts).to(self._device), *first])
        self._hand_over(header, rank, tag)
        for slot, tensor in enumerate(tensors, start=tag.slot + 1):
            sent = tensor.detach().contiguous()
            if sent.numel():
                self._hand_over(sent, rank, replace(tag, slot=slot))

    def send_message(self, message: StageMessage, rank: int, tag: Tag) -> None:
        """Hand a stage's message over and go on."""
        counts = [
            torch.tensor(one, dtype=torch.int64, device=self._device) for one in message.counts
        ]
        self.send([*message.rows, *counts], rank, tag, counts=len(counts))

    def send_shapes(self, tensors: Sequence[torch.Tensor], rank: int, tag: Tag) -> None:
        """Hand over types and shapes of tensors that may be on the device "meta", and go on."""
        self._hand_over(encode_header(tensors).to(self._device), rank, tag)

    def receive(self, rank: int, tag: Tag) -> list[torch.Tensor]:
        """Wait for a message and return its tensors."""
        return self._taken(self.expect(rank, tag))

    def receive_message(self, rank: int, tag: Tag) -> StageMessage:
        """Wait for a stage's message."""
        arriving = self.expect(rank, tag)
        tensors = self._taken(arriving)
        kept = len(tensors) - arriving.counts
        return StageMessage(tensors[:kept], [one.tolist() for one in tensors[kept:]])

    def _taken(self, arriving: Arriving) -> list[torch.Tensor]:
        places = [
            torch.empty(one.shape, dtype=one.dtype, device=self._device)
            for one in arriving.described()
        ]
        arriving.take(places)
        arriving.wait()
        return places

    def expect(self, rank: int, tag: Tag, ahead: int = 0) -> Arriving:
        """Ask for a message and go on.

        Args:
            rank: that sends.
            tag: of its header.
            ahead: integers that come in one piece with the header.
        """
        return Arriving(self, rank, tag, ahead)

    def tell(self, message: Message) -> None:
        """Tell the listeners of a message."""
        for listener in self.listeners:
            listener(message)

    def receive_header(self, rank: int, tag: Tag) -> torch.Tensor:
        """Wait for the header of a message, or for what `send_shapes` handed over."""
        header = self.room_for_header()
        self.ask_for(header, rank, tag).wait()
        return header

    def room_for_header(self, ahead: int = 0) -> torch.Tensor:
        """Return a tensor that a header, with integers behind it, can lie in."""
        return torch.zeros(_HEADER_SIZE + ahead, dtype=torch.int64, device=self._device)

    def _hand_over(self, tensor: torch.Tensor, rank: int, tag: Tag) -> None:
        work = dist.isend(tensor, rank, group=self._group, tag=tag.encode())
        assert work is not None
        self._under_way.append((work, tensor))
        self._note("sent", rank, tag)

    def ask_for(self, tensor: torch.Tensor, rank: int, tag: Tag) -> dist.Work:
        """Ask for one tensor of a message and go on."""
        work = dist.irecv(tensor, rank, group=self._group, tag=tag.encode())
        assert work is not None
        self._note("received", rank, tag)
        return work

    def _note(self, what: str, peer: int, tag: Tag) -> None:
        if self.noted is not None:
            self.noted.append((what, peer, tag))

    def wait(self) -> None:
        """Wait until all that was handed over has arrived."""
        for work, _ in self._under_way:
            work.wait()
        self._under_way.clear()
