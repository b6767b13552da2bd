"""Keep a search finite: fewer layouts per encoder where all combinations are too many."""

from __future__ import annotations

import math

import numpy as np

from mimokit.layout_search.candidates import Candidates

MOST_LAYOUTS = 40_000_000
"""Combinations of module sizes that a search evaluates at most, about five seconds' worth."""


def bounded(
    language: Candidates, encoders: tuple[Candidates, ...]
) -> tuple[tuple[Candidates, ...], tuple[str, ...]]:
    """Return encoders of so few candidates that their combinations are few enough, and the cuts.

    The plainest stay: one optimizer instance, no pipeline, no context parallelism, no recomputation
    before those with; of equally plain ones an even choice over the ranks.
    """
    counts = [encoder.count for encoder in encoders]
    while math.prod(counts) * language.count > MOST_LAYOUTS and max(counts, default=1) > 1:
        largest = counts.index(max(counts))
        counts[largest] = max(1, counts[largest] // 2)
    kept, cut = [], []
    for encoder, count in zip(encoders, counts, strict=True):
        kept.append(encoder if count == encoder.count else plainest(encoder, count))
        if count < encoder.count:
            cut.append(
                f"Module '{encoder.facts.name}': {count:,} of its {encoder.count:,} layouts were "
                f"combined with the {language.count:,} of the language model, the plainest first; "
                "narrow the space with constraints to see all."
            )
    return tuple(kept), tuple(cut)


def plainest(encoder: Candidates, count: int) -> Candidates:
    """Return the `count` plainest candidates, in the order they had."""
    sizes = encoder.sizes
    extras = [np.log2(sizes.instances), np.log2(sizes.pipeline), np.log2(sizes.context)]
    order = np.argsort(sum(extras) + sizes.recompute, kind="stable")
    return encoder.take(np.sort(order[:count]))
