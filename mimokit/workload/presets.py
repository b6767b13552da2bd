"""Mixes of published data sets, drawn from the statistics that their papers state.

The papers state means and medians, no samples. Between them a shape is supposed: a log-normal with
these, of counts of items one that is rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, sqrt
from typing import NamedTuple

import numpy as np

from mimokit.config.errors import unknown_name
from mimokit.workload.mix import MOST_ROWS, SampleMix, mix_of

TOKENS_PER_WORD = 1.3
"""Of English in vocabularies of byte pairs, roughly; papers that count words are so converted."""


class Drawn(NamedTuple):
    """A log-normal column; a mean equal to the median is a constant."""

    mean: float
    median: float
    most: float
    least: float = 0.0


@dataclass(frozen=True)
class PublishedMix:
    """A published data set.

    Attributes:
        source: of the numbers.
        supposed: what the source leaves open.
        rates: column -> (column that it is proportional to, factor).
    """

    source: str
    supposed: str
    columns: Mapping[str, Drawn]
    rates: Mapping[str, tuple[str, float]]

    def sentences(self) -> tuple[str, str]:
        """Return where its numbers come from, and what is supposed."""
        return f"Source: {self.source}.", f"Supposed: {self.supposed}."


PUBLISHED = {
    "image_captions": PublishedMix(
        "Conceptual Captions, Sharma et al. 2018 (ACL P18-1238), table 2: 10.3 tokens per caption "
        "on average, standard deviation 4.5, median 9.0; one image each",
        "the longest caption",
        {"text": Drawn(10.3, 9.0, 128, 1), "vision.items": Drawn(1, 1, 1)},
        {},
    ),
    "interleaved_pages": PublishedMix(
        "OBELICS, Laurençon et al. 2023 (arXiv 2306.16527): 141 million pages with 353 million "
        "images and 115 billion tokens",
        "medians of 677 tokens and 1 image, at most 30 images and 16,384 tokens on a page; images "
        "do not depend on text",
        {"text": Drawn(815, 677, 16_384, 1), "vision.items": Drawn(2.5, 1, 30, 1)},
        {},
    ),
    "videos": PublishedMix(
        "Panda-70M, Chen et al. 2024 (arXiv 2402.19479), table 1: 8.5 s and 13.2 words per clip",
        "1 frame a second, at most 64; medians of 6 s and 12 words",
        {
            "text": Drawn(13.2 * TOKENS_PER_WORD, 12 * TOKENS_PER_WORD, 128, 1),
            "vision.seconds": Drawn(8.5, 6.0, 64, 1),
        },
        {"vision.frames": ("vision.seconds", 1.0)},
    ),
    "speech": PublishedMix(
        "LibriSpeech, Panayotov et al. 2015 (ICASSP): 960.9 hours of training; its 281,241 "
        "utterances have 12.3 s on average",
        "a median of 12 s, at most 35 s; 2.7 words a second",
        {"audio.seconds": Drawn(12.3, 12.0, 35, 1), "audio.items": Drawn(1, 1, 1)},
        {"text": ("audio.seconds", 2.7 * TOKENS_PER_WORD)},
    ),
}
"""Name -> the data set."""


def mix_names() -> tuple[str, ...]:
    """Return the names of the shipped mixes."""
    return tuple(PUBLISHED)


def named_mix(name: str, samples: int = MOST_ROWS) -> SampleMix:
    """Return a shipped mix: the same samples each time.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in PUBLISHED:
        raise unknown_name("Workload", name, PUBLISHED)
    published, generator = PUBLISHED[name], np.random.default_rng(0)
    columns = {
        column: _drawn(drawn, samples, generator) for column, drawn in published.columns.items()
    }
    for column, (of, factor) in published.rates.items():
        columns[column] = np.maximum(np.round(columns[of] * factor), 1)
    return mix_of(columns, name)


def _drawn(drawn: Drawn, samples: int, generator: np.random.Generator) -> np.ndarray:
    spread = sqrt(2 * log(drawn.mean / drawn.median))
    values = np.exp(log(drawn.median) + spread * generator.standard_normal(samples))
    return np.clip(np.round(values), drawn.least, drawn.most)
