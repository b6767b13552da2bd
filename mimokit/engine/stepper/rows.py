"""The rows that cross between ranks: their fingerprints, and copies to look at."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from mimokit.planning.stepper.crossings import Crossing, PieceRows

MOST_LOOKED_AT = 1 << 22
"""Numbers of a piece that a client is sent; of more, only every so manieth column."""


@dataclass(frozen=True)
class CrossingRows:
    """The rows of a piece.

    Attributes:
        held: of a sender, the tensor from which they are to be cut; None: not known.
    """

    own: torch.Tensor
    held: torch.Tensor | None = None
    first: int = 0


@dataclass
class KeptRows:
    """The rows of the last ticks, by piece."""

    keep: int
    _ticks: dict[int, Mapping[tuple[Crossing, bool], CrossingRows]] = field(default_factory=dict)

    def remember(self, number: int, rows: Mapping[tuple[Crossing, bool], CrossingRows]) -> None:
        """Keep the rows of a tick, which are copies already."""
        if rows:
            self._ticks[number] = rows
        for old in [tick for tick in self._ticks if tick <= number - self.keep]:
            del self._ticks[old]

    def get(self, number: int, crossing: Crossing, sent: bool) -> PieceRows | None:
        """Return the rows of the last such piece up to a tick; None if not kept."""
        for tick, rows in reversed(self._ticks.items()):
            if tick <= number and (crossing, sent) in rows:
                return _looked_at(rows[crossing, sent])
        return None

    def clear(self) -> None:
        """Forget all."""
        self._ticks.clear()


def _looked_at(rows: CrossingRows) -> PieceRows:
    largest = max(rows.own.numel(), 0 if rows.held is None else rows.held.numel())
    every = 1 + largest // MOST_LOOKED_AT

    def numbers(tensor: torch.Tensor) -> torch.Tensor:
        return (tensor[..., ::every] if tensor.dim() else tensor).double()

    held = None if rows.held is None else numbers(rows.held).numpy()
    return PieceRows(numbers(rows.own).numpy(), held, rows.first)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the CPU."""
    return tensor.detach().to("cpu", copy=True)


def prints_of(tensor: torch.Tensor, counts: Sequence[int]) -> tuple[str, ...]:
    """Return one fingerprint per sample where the rows of each are known, else one of all rows."""
    if not counts or tensor.dim() == 0 or sum(counts) != len(tensor):
        return (print_of(tensor),)
    return tuple(print_of(part) for part in torch.split(tensor.detach(), list(counts)))


def print_of(tensor: torch.Tensor) -> str:
    """Return a fingerprint of the bits of a tensor."""
    bits = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(bits.numpy().tobytes(), digest_size=8).hexdigest()
