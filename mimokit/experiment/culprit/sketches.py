"""Joins what ranks have recorded: the sketch of every whole tensor from those of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from mimokit.planning.seams import SIGNS, ByRank, Floats, Seam

Joined = Mapping[Seam, Mapping[int, "Whole"]]
"""Seam -> sample -> what all ranks together have of it."""


@dataclass(slots=True)
class SketchPart:
    """A part of a tensor, of which several ranks may have copies.

    Attributes:
        complete: it is no summand of a sum that is not complete yet.
        copies: rank -> sketch.
    """

    complete: bool
    places: int
    squares: float
    copies: dict[int, Floats] = field(default_factory=dict)


@dataclass(slots=True)
class Whole:
    """A tensor of one sample, or a parameter, by its parts."""

    parts: dict[tuple[str, int], SketchPart] = field(default_factory=dict)

    def add(self, rank: int, share: str, places: int, squares: float, values: Floats) -> None:
        """Add what a rank has."""
        part = self.parts.setdefault((share, places), SketchPart(not share, places, squares))
        part.copies.setdefault(rank, values)

    @property
    def places(self) -> int | None:
        """Which places ranks have, together; None for a sum."""
        if not all(part.complete for part in self.parts.values()):
            return None
        return sum(part.places for part in self.parts.values()) % 2**64

    @property
    def squares(self) -> float:
        """Sum of the squares of all entries, for what is no sum."""
        return sum(part.squares for part in self.parts.values())

    @property
    def total(self) -> Floats:
        """The sketch of the whole, from the first copy of every part."""
        return sum((next(iter(p.copies.values())) for p in self.parts.values()), np.zeros(SIGNS))

    def times(self, factor: float) -> Whole:
        """Return a multiple of it."""
        return Whole(
            {
                key: SketchPart(
                    part.complete,
                    part.places,
                    part.squares * factor**2,
                    {rank: values * factor for rank, values in part.copies.items()},
                )
                for key, part in self.parts.items()
            }
        )

    def change_since(self, before: Whole) -> Whole:
        """Return what every rank has added to an earlier one; norms are those of sketches."""
        parts, none = {}, np.zeros(SIGNS)
        for key, part in self.parts.items():
            earlier = before.parts.get(key)
            known = {} if earlier is None else earlier.copies
            copies = {rank: values - known.get(rank, none) for rank, values in part.copies.items()}
            squares = float(np.mean(np.square(next(iter(copies.values())))))
            parts[key] = SketchPart(part.complete, part.places, squares, copies)
        return Whole(parts)

    def by_rank(self) -> Iterator[tuple[int, Floats]]:
        """Yield, for every rank, the sketch of the whole if its copies are taken."""
        total = self.total
        for part in self.parts.values():
            first = next(iter(part.copies.values()))
            for rank, values in part.copies.items():
                yield rank, total - first + values


def combined(by_rank: ByRank) -> Joined:
    """Join the records of all ranks."""
    by_seam: dict[Seam, dict[int, Whole]] = {}
    for rank, recording in by_rank.items():
        for seam, record in recording.sketches.items():
            of_seam = by_seam.setdefault(seam, {})
            rows = zip(record.samples, record.places, record.squares, record.values, strict=True)
            for sample, places, squares, values in rows:
                whole = of_seam.setdefault(sample, Whole())
                whole.add(rank, record.share, places, squares, values)
    return by_seam
