"""Frames of samples as a user writes them: '64 1 / 2 / 8 1', a slash between ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mimokit.config import ConfigError, Problem
from mimokit.units import shown

MOST_FRAMES = 1_000_000
BETWEEN_RANKS = "/"


def read_counts(text: str) -> list[list[int]]:
    """Return the frames per sample of every rank; a text without a slash is that of one rank.

    Raises:
        ConfigError: something is not a number of frames, or there are too many.
    """
    ranks = []
    for part in text.split(BETWEEN_RANKS):
        words = re.split(r"[\s,;]+", part.strip(" \t\r\n,;[]"))
        wrong = next((word for word in words if not re.fullmatch(r"[0-9]{0,7}", word)), None)
        if wrong is not None:
            raise _refused(text, f"{shown(wrong, 24)} is not a number of frames; write 64 1 / 2")
        ranks.append([int(word) for word in words if word])
    total = sum(map(sum, ranks))
    if total > MOST_FRAMES:
        raise _refused(text, f"{total:,} are more than {MOST_FRAMES:,}")
    return ranks


def dealt(samples: Sequence[int], ranks: int) -> list[list[int]]:
    """Return the samples of each rank, contiguous; the first ranks have one more if need be."""
    each, more = divmod(len(samples), ranks)
    ends = [(rank + 1) * each + min(rank + 1, more) for rank in range(ranks)]
    return [list(samples[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


def counts_text(ranks: Sequence[Sequence[int]]) -> str:
    """Return the text that `read_counts` reads."""
    return f" {BETWEEN_RANKS} ".join(" ".join(map(str, samples)) for samples in ranks)


def _refused(value: str, why: str) -> ConfigError:
    sentence = f"The frames of samples, {shown(value)}: {why}."
    return ConfigError([Problem("frames", "counts", value, sentence)])
