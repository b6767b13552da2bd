"""What stages hand each other: a tensor, and how samples and items share its rows.

It has one form in stages, messages and bridges. `FIELDS` is the order in which it crosses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

ON_HOST = ("samples", "items")
"""Fields that are numbers for Python: they lie on the CPU, and travel by gloo, on every device."""
FIELDS = ("tensor", "sizes", "positions", *ON_HOST)


@dataclass(frozen=True)
class Ragged:
    """A tensor of samples that differ in length. What is not known, or not needed, is None.

    Attributes:
        tensor: rows [rows, width], sample by sample and item by item; between the stages of a
            module hidden states [positions, items, hidden] or [tokens, samples, hidden].
        samples: rows of each sample; between stages of a language model its tokens without padding.
        sizes: of each item, [items, …] int64: its grid in tokens, or what its encoder calls size.
        positions: of the tokens on three axes, [3, samples, tokens] int64.
    """

    tensor: torch.Tensor
    samples: list[int] | None = None
    items: list[int] | None = None
    sizes: torch.Tensor | None = None
    positions: torch.Tensor | None = None

    @classmethod
    def of_parts(cls, parts: Mapping[str, torch.Tensor]) -> Ragged:
        """Return what `parts` took apart."""
        samples, items = (parts[name].tolist() if name in parts else None for name in ON_HOST)
        return cls(parts["tensor"], samples, items, parts.get("sizes"), parts.get("positions"))

    @property
    def known(self) -> list[str]:
        """The fields that are known, in the order of `FIELDS`."""
        return [name for name in FIELDS if getattr(self, name) is not None]

    def parts(self) -> dict[str, torch.Tensor]:
        """Return the known fields as tensors."""
        parts = {name: getattr(self, name) for name in self.known}
        on_host = {name: torch.tensor(parts[name]).long() for name in ON_HOST if name in parts}
        return {**parts, **on_host}

    @classmethod
    def of_kinds(cls, rows: Sequence[torch.Tensor], numbers: Sequence[list[int]]) -> Ragged:
        """Return what `kinds` took apart."""
        if len(rows) == 1:
            return cls(rows[0], numbers[0])
        return cls(rows[0], numbers[0], numbers[1], rows[1])

    def kinds(self, count: int) -> tuple[list[torch.Tensor], list[list[int]]]:
        """Return what a bridge cuts sample by sample, and how many rows of it each sample has.

        Args:
            count: 1 for the rows of samples, 2 for the sizes of their items as well.
        """
        if count == 1:
            return [self.tensor], [samples_of(self)]
        assert self.sizes is not None
        return [self.tensor, self.sizes], [samples_of(self), items_of(self)]

    def carrying(self, tensor: torch.Tensor) -> Ragged:
        """Return the same with another tensor in its place."""
        return Ragged(tensor, self.samples, self.items, self.sizes, self.positions)


def samples_of(ragged: Ragged) -> list[int]:
    """Return the rows of each sample, where they must be known."""
    assert ragged.samples is not None, "rows that cross are counted by sample"
    return ragged.samples


def items_of(ragged: Ragged) -> list[int]:
    """Return the items of each sample, where they must be known."""
    assert ragged.items is not None, "items that cross are counted by sample"
    return ragged.items
