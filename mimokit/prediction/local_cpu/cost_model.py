"""What pieces of a training step cost a rank in CPU seconds: laws with measured constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from mimokit.config.errors import ConfigError, Problem
from mimokit.prediction.local_cpu.operation_counts import NUMBER_BYTES

SEGMENTS = 2
"""Gloo cuts what an all-reduce adds up into so many segments per rank (`allreduce.cc`)."""

Law = Mapping[str, Annotated[float, Field(ge=0)]]
"""term -> CPU seconds per unit of it."""


def collective_terms(kind: str, ranks: int, size: float) -> dict[str, float]:
    """Return what the CPU seconds of a collective depend on.

    An all-reduce sends its segments around a ring, twice; where there are fewer numbers than
    segments the others are empty, and nothing is sent for them.

    Args:
        kind: all-reduce, all-gather, reduce-scatter, broadcast or send.
        ranks: of the group.
        size: bytes of the whole result; of a send, of the message.

    Returns:
        "call": 1; "byte": that a rank sends; of an all-reduce "segment": that are not empty.
    """
    if kind == "send":
        return {"call": 1.0, "byte": float(size)}
    moved = size * (ranks - 1) / ranks
    if kind != "all-reduce":
        return {"call": 1.0, "byte": moved}
    segments = min(float(SEGMENTS * ranks), size / NUMBER_BYTES)
    return {"call": 1.0, "segment": segments, "byte": 2 * moved}


@dataclass(frozen=True)
class CoreCosts:
    """CPU seconds of a rank while some ranks are at work.

    Attributes:
        pieces: piece ("language forward", "update", …) -> its law.
        collectives: kind -> ranks of the group -> its law, see `collective_terms`.
        busy: share of the cores that ranks keep busy while they hand work over to each other.
    """

    pieces: Mapping[str, Law]
    collectives: Mapping[str, Mapping[int, Law]]
    busy: Annotated[float, Field(gt=0, le=1)] = 1.0

    def piece(self, name: str, terms: Mapping[str, float]) -> float:
        """Return the CPU seconds of a piece.

        Raises:
            ConfigError: it was not measured.
        """
        if name not in self.pieces:
            raise _unmeasured(f"piece '{name}'")
        return sum(self.pieces[name][term] * amount for term, amount in terms.items())

    def collective(self, kind: str, ranks: int, size: float) -> float:
        """Return the CPU seconds that one collective costs each rank; 0 for a group of one.

        Groups that were not measured lie on the line between the nearest that were, or beyond.

        Args:
            kind: all-reduce, all-gather, reduce-scatter or broadcast.
            ranks: of the group.
            size: bytes of the whole result.

        Raises:
            ConfigError: it was not measured.
        """
        if ranks <= 1:
            return 0.0
        if not self.collectives.get(kind):
            raise _unmeasured(f"collective '{kind}'")
        terms = collective_terms(kind, ranks, size)
        laws = self.collectives[kind]
        low = max((n for n in laws if n <= ranks), default=min(laws))
        high = min((n for n in laws if n >= ranks), default=max(laws))
        below, above = (_seconds(laws[n], terms) for n in (low, high))
        if low == high:
            return below * (ranks - 1) / (low - 1)
        return below + (above - below) * (ranks - low) / (high - low)

    def message(self, size: float) -> float:
        """Return the CPU seconds of sending a message, or of receiving it: the mean of both.

        Raises:
            ConfigError: messages were not measured.
        """
        laws = self.collectives.get("send")
        if not laws:
            raise _unmeasured("collective 'send'")
        return _seconds(laws[2], collective_terms("send", 2, size))


@dataclass(frozen=True)
class SharedCosts:
    """What pieces of a step cost, by how many ranks share the cores: from `fit_shared_costs`.

    Attributes:
        at_work: ranks that are at work -> CPU seconds of each of them.
    """

    at_work: Mapping[int, CoreCosts]

    def at(self, ranks: int) -> CoreCosts:
        """Return the costs while so many ranks are at work.

        What was not measured lies on the line between the nearest that were; beyond them the
        nearest holds.
        """
        low = max((n for n in self.at_work if n <= ranks), default=min(self.at_work))
        high = min((n for n in self.at_work if n >= ranks), default=max(self.at_work))
        if low == high:
            return self.at_work[low]
        share = (min(ranks, high) - low) / (high - low)
        return _between(self.at_work[low], self.at_work[high], share)


def _between(low: CoreCosts, high: CoreCosts, share: float) -> CoreCosts:
    """Return the costs on the line from one to another; groups that one lacks are the other's."""
    pieces = {
        name: _law_between(low.pieces.get(name, law), law, share)
        for name, law in high.pieces.items()
    }
    collectives = {
        kind: {
            ranks: _law_between(low.collectives.get(kind, {}).get(ranks, law), law, share)
            for ranks, law in groups.items()
        }
        for kind, groups in high.collectives.items()
    }
    return CoreCosts(pieces, collectives, low.busy + share * (high.busy - low.busy))


def _law_between(low: Law, high: Law, share: float) -> Law:
    return {term: low[term] + share * (seconds - low[term]) for term, seconds in high.items()}


def _seconds(law: Law, terms: Mapping[str, float]) -> float:
    return sum(seconds * terms[term] for term, seconds in law.items())


def _unmeasured(what: str) -> ConfigError:
    sentence = f"Calibration: it has no {what}; run mimokit.calibrate(cluster) again."
    return ConfigError([Problem("calibration", "laws", what, sentence)])
