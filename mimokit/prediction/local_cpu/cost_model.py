"""CPU seconds of the pieces of a training step on a rank: laws with measured constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from mimokit.config.errors import ConfigError, Problem

NUMBER_BYTES = 4
"""All numbers are fp32 in a process without a GPU."""

SEGMENTS = 2
"""Number of segments per rank that gloo divides the data of an all-reduce into (`allreduce.cc`)."""

Law = Mapping[str, Annotated[float, Field(ge=0)]]
"""term -> CPU seconds per unit of it."""


def collective_terms(kind: str, ranks: int, size: float) -> dict[str, float]:
    """Return the terms that the CPU seconds of a collective depend on.

    An all-reduce sends its segments around a ring twice. Segments are empty if there are fewer
    numbers than segments, and empty segments are not sent.

    Args:
        size: bytes of the full result, or of the message of a send.

    Returns:
        "call": 1. "byte": bytes that a rank sends. "segment", of an all-reduce: non-empty ones.
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
    """CPU seconds of a rank while a given number of ranks is active.

    Attributes:
        pieces: piece ("language forward", "update", …) -> its law.
        collectives: kind -> ranks of the group -> its law, see `collective_terms`.
        busy: share of the cores that is in use when ranks wait for each other; see `busy_share`.
    """

    pieces: Mapping[str, Law]
    collectives: Mapping[str, Mapping[int, Law]]
    busy: Annotated[float, Field(gt=0, le=1)] = 1.0

    def piece(self, name: str, terms: Mapping[str, float]) -> float:
        """Return the CPU seconds of a piece.

        Raises:
            ConfigError: the calibration did not measure it.
        """
        if name not in self.pieces:
            raise _unmeasured(f"piece '{name}'")
        return sum(self.pieces[name][term] * amount for term, amount in terms.items())

    def collective(self, kind: str, ranks: int, size: float) -> float:
        """Return the CPU seconds of one collective on each rank, 0 for a group of one.

        Sizes of groups that were not measured are interpolated or extrapolated linearly.

        Raises:
            ConfigError: the calibration did not measure it.
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
        """Return the CPU seconds of sending or receiving a message: the mean of both.

        Raises:
            ConfigError: the calibration did not measure messages.
        """
        laws = self.collectives.get("send")
        if not laws:
            raise _unmeasured("collective 'send'")
        return _seconds(laws[2], collective_terms("send", 2, size))


@dataclass(frozen=True)
class SharedCosts:
    """CPU seconds by the number of active ranks, from `fit_shared_costs`."""

    at_work: Mapping[int, CoreCosts]

    def at(self, ranks: int) -> CoreCosts:
        """Return the costs while `ranks` ranks are active.

        Costs between measured numbers of ranks are interpolated linearly. Beyond them the nearest
        measured costs are returned.
        """
        low = max((n for n in self.at_work if n <= ranks), default=min(self.at_work))
        high = min((n for n in self.at_work if n >= ranks), default=max(self.at_work))
        if low == high:
            return self.at_work[low]
        share = (min(ranks, high) - low) / (high - low)
        return _between(self.at_work[low], self.at_work[high], share)


def _between(low: CoreCosts, high: CoreCosts, share: float) -> CoreCosts:
    """Return interpolated costs. A group that `low` lacks is that of `high`."""
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
