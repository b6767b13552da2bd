"""What was shown for a plan, for how many ranks, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mimokit.tables import Report, Section

COLUMNS = ("claim", "shown for", "faults")

MOST_FAULTS = 3
"""Faults of a claim that are kept; a wrong plan has one for thousands of ranks."""


@dataclass(frozen=True)
class Claim:
    """A statement about every rank of a plan.

    Attributes:
        shown_for: every rank, or representatives of ranks that are alike.
        faults: sentences, the first of them; none: it is true.
    """

    name: str
    shown_for: str
    faults: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, shown_for: str, faults: Iterable[str]) -> Claim:
        """Return a claim with the first faults that were found."""
        return cls(name, shown_for, tuple(islice(faults, MOST_FAULTS)))


@dataclass(frozen=True, repr=False)
class PlanProof(Report):
    """The claims about a plan."""

    name: str
    ranks: int
    claims: tuple[Claim, ...]

    @property
    def passed(self) -> bool:
        """Whether all claims are true."""
        return not any(claim.faults for claim in self.claims)

    @property
    def verdict(self) -> str:
        """A sentence about the plan; of a wrong one the first fault."""
        if self.passed:
            return (
                f"The plan of {self.name!r} for {self.ranks:,} ranks is right: {len(self.claims)} "
                "claims hold. What its ranks compute is not part of it; `mimokit verify` runs that."
            )
        claim = next(claim for claim in self.claims if claim.faults)
        return f"The plan of {self.name!r} is wrong ({claim.name}): {claim.faults[0]}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "ranks": self.ranks,
            "passed": self.passed,
            "verdict": self.verdict,
            "claims": [
                {"name": claim.name, "shown_for": claim.shown_for, "faults": list(claim.faults)}
                for claim in self.claims
            ],
        }

    def section(self) -> Section:
        """Return a row per claim; the last line is the sentence."""
        return Section("Proof of the plan", COLUMNS, list(self._rows()), (self.verdict,))

    def _rows(self) -> Iterator[list[str]]:
        for claim in self.claims:
            yield [claim.name, claim.shown_for, str(len(claim.faults)) if claim.faults else "none"]
