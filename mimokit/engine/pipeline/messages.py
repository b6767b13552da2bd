"""Tensors between two ranks: sent without waiting, their shapes known before a receive is posted.

A receive buffer of the wrong size aborts a gloo process, and one of the wrong type is filled
without a word. So every message begins with a header of fixed size that names count, types and
shapes of its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from mimokit.engine.pipeline.tags import Tag

_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)
_MOST_DIMENSIONS = 4
_MOST_TENSORS = 6
_HEADER_SIZE = 1 + _MOST_TENSORS * (2 + _MOST_DIMENSIONS)


def encode_header(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return [count, then per tensor: type, dimensions, sizes], int64, of a fixed size.

    Raises:
        ValueError: if there are too many tensors or dimensions, or a type is unknown.
    """
    if len(tensors) > _MOST_TENSORS:
        raise ValueError(f"A message has at most {_MOST_TENSORS} tensors, not {len(tensors)}.")
    header = torch.zeros(_HEADER_SIZE, dtype=torch.int64)
    header[0] = len(tensors)
    for number, tensor in enumerate(tensors):
        if tensor.dim() > _MOST_DIMENSIONS or tensor.dtype not in _TYPES:
            raise ValueError(
                f"A tensor of type {tensor.dtype} and shape {tuple(tensor.shape)} cannot be sent."
            )
        begin = 1 + number * (2 + _MOST_DIMENSIONS)
        sizes = [_TYPES.index(tensor.dtype), tensor.dim(), *tensor.shape]
        header[begin : begin + len(sizes)] = torch.tensor(sizes)
    return header


def decode_header(header: torch.Tensor, device: torch.device) -> list[torch.Tensor]:
    """Return empty tensors of the types and shapes that a header names."""
    values = header.tolist()
    tensors = []
    for number in range(values[0]):
        begin = 1 + number * (2 + _MOST_DIMENSIONS)
        kind, dimensions = values[begin], values[begin + 1]
        shape = values[begin + 2 : begin + 2 + dimensions]
        tensors.append(torch.empty(shape, dtype=_TYPES[kind], device=device))
    return tensors


def _room_for(parts: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return an empty tensor that holds parts end to end.

    Raises:
        ValueError: they have different widths or types.
    """
    first = parts[0]
    for part in parts[1:]:
        if part.shape[1:] != first.shape[1:] or part.dtype != first.dtype:
            raise ValueError(
                f"Pieces of {tuple(first.shape)} in {first.dtype} and {tuple(part.shape)} in "
                f"{part.dtype} cannot be laid end to end."
            )
    rows = sum(len(part) for part in parts)
    return torch.empty((rows, *first.shape[1:]), dtype=first.dtype, device=device)


@dataclass(frozen=True)
class Message:
    """A message as one end sees it.

    Attributes:
        sent: handed over by this rank; False: received.
        peer: the rank at the other end.
        tag: of its header.
        tensors: what it carries.
    """

    sent: bool
    peer: int
    tag: Tag
    tensors: tuple[torch.Tensor, ...]


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

    def send(self, tensors: Sequence[torch.Tensor], rank: int, tag: Tag) -> None:
        """Hand a message over and go on.

        Raises:
            ValueError: if the message cannot be described, or a field of the tag overflows.
        """
        self._tell(Message(True, rank, tag, tuple(tensors)))
        parts = [encode_header(tensors).to(self._device), *(t.detach() for t in tensors)]
        for slot, part in enumerate(parts, start=tag.slot):
            sent = part.contiguous()
            if sent.numel():
                self._hand_over(sent, rank, replace(tag, slot=slot))

    def send_shapes(self, tensors: Sequence[torch.Tensor], rank: int, tag: Tag) -> None:
        """Hand over types and shapes of tensors that may be on the device "meta", and go on."""
        self._hand_over(encode_header(tensors).to(self._device), rank, tag)

    def receive(self, rank: int, tag: Tag) -> list[torch.Tensor]:
        """Wait for a message and return its tensors."""
        return self.receive_joined([(rank, tag)])

    def receive_joined(self, places: Sequence[tuple[int, Tag]]) -> list[torch.Tensor]:
        """Wait for messages of different ranks and return their tensors, laid end to end.

        All are asked for at once, and each arrives where it is to lie: nothing is copied.

        Args:
            places: (rank, tag) of each message, in the order in which they are to lie.

        Raises:
            ValueError: the messages have tensors of different widths or types.
        """
        headers = [self._post_header(rank, tag) for rank, tag in places]
        described = [decode_header(wait(), torch.device("meta")) for wait in headers]
        whole = [_room_for(parts, self._device) for parts in zip(*described, strict=True)]
        sizes = [[len(part) for part in parts] for parts in zip(*described, strict=True)]
        pieces = [torch.split(one, size) for one, size in zip(whole, sizes, strict=True)]
        works = []
        messages = []
        for (rank, tag), *tensors in zip(places, *pieces, strict=True):
            messages.append(Message(False, rank, tag, tuple(tensors)))
            works += [
                self._ask_for(tensor, rank, replace(tag, slot=slot))
                for slot, tensor in enumerate(tensors, start=tag.slot + 1)
                if tensor.numel()
            ]
        for work in works:
            work.wait()
        for message in messages:
            self._tell(message)
        return whole

    def _tell(self, message: Message) -> None:
        for listener in self.listeners:
            listener(message)

    def receive_header(self, rank: int, tag: Tag) -> torch.Tensor:
        """Wait for the header of a message, or for what `send_shapes` handed over."""
        return self._post_header(rank, tag)()

    def _post_header(self, rank: int, tag: Tag) -> Callable[[], torch.Tensor]:
        """Ask for a header; the result waits for it."""
        header = torch.zeros(_HEADER_SIZE, dtype=torch.int64, device=self._device)
        work = self._ask_for(header, rank, tag)

        def wait() -> torch.Tensor:
            work.wait()
            return header

        return wait

    def _hand_over(self, tensor: torch.Tensor, rank: int, tag: Tag) -> None:
        work = dist.isend(tensor, rank, group=self._group, tag=tag.encode())
        assert work is not None
        self._under_way.append((work, tensor))
        self._note("sent", rank, tag)

    def _ask_for(self, tensor: torch.Tensor, rank: int, tag: Tag) -> dist.Work:
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
