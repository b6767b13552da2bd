"""What pieces of a training step cost a rank in CPU seconds: laws with measured constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mimokit.config.problems import ConfigError, Problem

Law = Mapping[str, float]
"""term -> CPU seconds per unit of it."""


@dataclass(frozen=True)
class CoreCosts:
    """CPU seconds of a rank, fitted by `fit_core_costs`.

    Attributes:
        pieces: piece ("language forward", "update", …) -> its law.
        collectives: kind -> ranks of the group -> seconds per "call" and per "byte" that a rank
            sends.
    """

    pieces: Mapping[str, Law]
    collectives: Mapping[str, Mapping[int, Law]]

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
            kind: all-reduce, all-gather or reduce-scatter.
            ranks: of the group.
            size: bytes of the whole result.

        Raises:
            ConfigError: it was not measured.
        """
        if ranks <= 1:
            return 0.0
        if not self.collectives.get(kind):
            raise _unmeasured(f"collective '{kind}'")
        turns = 2 if kind == "all-reduce" else 1
        moved = size * turns * (ranks - 1) / ranks
        laws = self.collectives[kind]
        low = max((n for n in laws if n <= ranks), default=min(laws))
        high = min((n for n in laws if n >= ranks), default=max(laws))
        below, above = (laws[n]["call"] + laws[n]["byte"] * moved for n in (low, high))
        if low == high:
            return below * (ranks - 1) / (low - 1)
        return below + (above - below) * (ranks - low) / (high - low)

    def message(self, size: float) -> float:
        """Return the CPU seconds of sending a message; receiving it costs as much again.

        Raises:
            ConfigError: messages were not measured.
        """
        laws = self.collectives.get("send")
        if not laws:
            raise _unmeasured("collective 'send'")
        law = laws[2]
        return (law["call"] + law["byte"] * size) / 2


def _unmeasured(what: str) -> ConfigError:
    sentence = f"Calibration: it has no {what}; run mimokit.calibrate(cluster) again."
    return ConfigError([Problem("calibration", "laws", what, sentence)])
