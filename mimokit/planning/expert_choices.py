"""Which experts the tokens of a step visit, as one process has chosen them.

In fewer bits than fp32 a rounding sends a token whose experts nearly tie to another one, and a
layout then computes something else, as right as the first. For a comparison both route alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

CHOSEN, KEPT = 1, 2
"""Bits of an expert of a token: it is among the best of the token, and it has room for it."""

NEAR = 5.0
"""Times the largest difference of a score between two runs of one process by which scores may be
apart that tie but for rounding. A layout may differ by 1.5 times that from one of the two, which
the other one does as well: by 2.5 times in all, and so may both scores of a pair."""

Router = tuple[str, int]
"""Module and number of the layer, from 1."""

Array = NDArray[Any]

BySample = Mapping[int, Array]
"""Number of a sample in the global batch -> [tokens, experts]."""


@dataclass(frozen=True)
class ExpertChoices:
    """The choices of all routers in a step.

    Attributes:
        experts: router -> of every sample `CHOSEN` and `KEPT` of every token and expert, uint8.
        scores: likewise the scores that were compared, float32; empty once nothing needs them.
        near: how far apart scores are that tie but for rounding.
    """

    experts: Mapping[Router, BySample] = field(default_factory=dict)
    scores: Mapping[Router, BySample] = field(default_factory=dict)
    near: float = 0.0

    def that_tie(self, apart: float) -> ExpertChoices:
        """Return the choices without scores, for runs that take them where theirs nearly tie."""
        return ExpertChoices(self.experts, near=NEAR * apart)


@dataclass(frozen=True)
class Rerouted:
    """How many choices were others than those of one process; a token has one in every layer.

    Attributes:
        choices: that were compared.
        taken: nearly tied, and gave way to those of one process.
        wrong: did not tie, and stayed as they were.
        farthest: how far apart the scores of exchanged experts were at most.
        scores: the largest difference of a score, where scores were compared.
    """

    choices: int = 0
    taken: int = 0
    wrong: int = 0
    farthest: float = 0.0
    scores: float = 0.0


def together(parts: Iterable[Rerouted]) -> Rerouted:
    """Return the choices of several ranks or steps."""
    every = list(parts)
    return Rerouted(
        sum(part.choices for part in every),
        sum(part.taken for part in every),
        sum(part.wrong for part in every),
        max((part.farthest for part in every), default=0.0),
        max((part.scores for part in every), default=0.0),
    )
