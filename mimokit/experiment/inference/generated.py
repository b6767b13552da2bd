"""What a sharded model has generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Generation:
    """Tokens that follow prompts.

    Attributes:
        tokens: new ids of every prompt alone, the stop token included.
        log_probs: of these tokens, by the softmax of the model's logits (natural logarithm).
        seconds: of generating, on the slowest rank.
        bytes_per_token: bytes that a rank gives to collectives per new token of its prompts, those
            for the prompts included; of the rank with the most.
    """

    tokens: list[list[int]]
    log_probs: list[list[float]]
    seconds: float
    bytes_per_token: float

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all prompts per second."""
        return sum(map(len, self.tokens)) / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "tokens": self.tokens,
            "tokens_per_second": self.tokens_per_second,
            "bytes_per_token": self.bytes_per_token,
        }


@dataclass(frozen=True)
class RankTokens:
    """What one replica has generated.

    Attributes:
        rows: numbers of its prompts.
        tokens: new ids of every row.
        log_probs: of these.
        seconds: of generating.
        bytes: that its rank gave to collectives.
    """

    rows: tuple[int, ...]
    tokens: list[list[int]]
    log_probs: list[list[float]]
    seconds: float
    bytes: int


def joined(parts: list[RankTokens]) -> Generation:
    """Return what replicas have generated, in the order of the prompts.

    Args:
        parts: of one rank of every replica that had prompts.
    """
    tokens = {row: one for part in parts for row, one in zip(part.rows, part.tokens, strict=True)}
    probs = {row: one for part in parts for row, one in zip(part.rows, part.log_probs, strict=True)}
    return Generation(
        [tokens[row] for row in sorted(tokens)],
        [probs[row] for row in sorted(probs)],
        max(part.seconds for part in parts),
        max(part.bytes / max(1, sum(map(len, part.tokens))) for part in parts),
    )
