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

    Attributes:
        listeners: told of every message, on sending before it is handed over, on receiving once
            it is there.
        noted: for debugging: ("sent" or "received", other rank, tag) of everything that crosses,
            one by one, where a list is given.
    """

    def __init__(self, device: torch.device) -> None:
        self.listeners: list[Callable[[Message], None]] = []
        self.noted: list[tuple[str, int, Tag]] | None = None
        self._device = device
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
        tensors = decode_header(self.receive_header(rank, tag), self._device)
        works = [
            self._ask_for(tensor, rank, replace(tag, slot=slot))
            for slot, tensor in enumerate(tensors, start=tag.slot + 1)
            if tensor.numel()
        ]
        for work in works:
            work.wait()
        self._tell(Message(False, rank, tag, tuple(tensors)))
        return tensors

    def _tell(self, message: Message) -> None:
        for listener in self.listeners:
            listener(message)

    def receive_header(self, rank: int, tag: Tag) -> torch.Tensor:
        """Wait for the header of a message, or for what `send_shapes` handed over."""
        header = torch.zeros(_HEADER_SIZE, dtype=torch.int64, device=self._device)
        self._ask_for(header, rank, tag).wait()
        return header

    def _hand_over(self, tensor: torch.Tensor, rank: int, tag: Tag) -> None:
        work = dist.isend(tensor, rank, tag=tag.encode())
        assert work is not None
        self._under_way.append((work, tensor))
        self._note("sent", rank, tag)

    def _ask_for(self, tensor: torch.Tensor, rank: int, tag: Tag) -> dist.Work:
        work = dist.irecv(tensor, rank, tag=tag.encode())
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
