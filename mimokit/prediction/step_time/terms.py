"""One line of a layer's time: work that a reader can count, the rates assumed, and the seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from mimokit.config.sizes import Numbers
from mimokit.prediction.step_time.breakdown import TimeBreakdown

FITTED, OWN_RUNS = "fitted to published steps", "fitted to own runs"
MEASURED, OF_FILE = "measured", "from the GPU's file"
FOLLOWS = "follows from other lines"
"""What stands behind the seconds of one operation, byte or launch."""


@dataclass(frozen=True)
class TimePiece:
    """A part of a term's seconds: a number that a reader can count, times the seconds of each.

    Attributes:
        each: seconds of one.
        unit: what is counted.
        basis: what stands behind `each`.
    """

    amount: Numbers
    each: Numbers
    unit: str
    basis: str = MEASURED

    @property
    def seconds(self) -> Numbers:
        """Seconds of all."""
        return self.amount * self.each


@dataclass(frozen=True)
class Term:
    """Work of one kind in one pass of a layer.

    Attributes:
        part: field of `TimeBreakdown` that it counts in.
        seconds: that it adds to the pass: those of its pieces, less what is hidden.
        operations: floating-point operations.
        bytes: moved through memory, or between ranks by a collective.
        launches: kernels, products or collectives.
        hidden: seconds that overlap other work and are not in `seconds`.
        ranks: of the group of a collective; 0: it is none.
        pieces: what all its seconds consist of.
    """

    part: str
    name: str
    seconds: Numbers
    operations: Numbers = 0.0
    bytes: Numbers = 0.0
    launches: Numbers = 0.0
    hidden: Numbers = 0.0
    ranks: Numbers = 0.0
    pieces: tuple[TimePiece, ...] = ()

    def times(self, factor: Numbers) -> Term:
        """Return the same work several times."""
        return Term(
            self.part,
            self.name,
            self.seconds * factor,
            self.operations * factor,
            self.bytes * factor,
            self.launches * factor,
            self.hidden * factor,
            self.ranks,
            tuple(TimePiece(p.amount * factor, p.each, p.unit, p.basis) for p in self.pieces),
        )


@dataclass(frozen=True)
class TimedTerms:
    """Terms that follow each other, and their seconds by part."""

    terms: Iterable[Term]
    time: TimeBreakdown

    @classmethod
    def of(cls, terms: Iterable[Term]) -> Self:
        """Return the work of terms."""
        terms = tuple(terms)
        return cls(terms, breakdown(terms))


def added(part: str, name: str, pieces: Iterable[TimePiece], **counted: Numbers) -> Term:
    """Return a term whose pieces run one after the other, and hide nowhere."""
    pieces = tuple(pieces)
    seconds: Numbers = sum((piece.seconds for piece in pieces), 0.0)
    return Term(part, name, seconds, pieces=pieces, **counted)


def breakdown(terms: Iterable[Term]) -> TimeBreakdown:
    """Return the seconds of terms by part."""
    parts: dict[str, Numbers] = {}
    for term in terms:
        parts[term.part] = parts.get(term.part, 0.0) + term.seconds
    return TimeBreakdown(**parts)
