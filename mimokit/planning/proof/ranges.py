"""Sample ranges of many ranks as one array."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mimokit.planning.ranks import RankRanges, SampleRange

Ranges = NDArray[np.int64]
"""[..., 2]: start and stop; -1 and -1 where a rank has no range."""


def ranges_of(samples: Mapping[int, SampleRange], ranks: NDArray[np.int64]) -> Ranges:
    """Return the range of each rank, [*shape of the ranks, 2]."""
    if isinstance(samples, RankRanges):
        start = (ranks - samples.rank_offset) // samples.ranks_per_piece % samples.pieces
        ranges = np.stack([start * samples.size, (start + 1) * samples.size], -1)
        known = np.zeros(ranks.shape, bool)
        for span in samples.spans:
            known |= (ranks >= span.start) & (ranks < span.stop)
        return np.where(known[..., None], ranges, -1)
    flat = [samples.get(rank, (-1, -1)) for rank in ranks.reshape(-1).tolist()]
    return np.array(flat, np.int64).reshape(*ranks.shape, 2)


def covered_once(ranges: Ranges, whole: SampleRange) -> str:
    """Return what is wrong with ranges [number, 2] that should make up a whole; or nothing."""
    ordered = ranges[np.lexsort((ranges[:, 1], ranges[:, 0]))]
    at = whole[0]
    for start, stop in ordered.tolist():
        if start > at:
            return f"nobody has samples {at} to {start - 1}"
        if start < at:
            return f"sample {start} is there twice"
        if stop <= start:
            return f"a range from {start} to {stop} is empty"
        at = stop
    if at < whole[1]:
        return f"nobody has samples {at} to {whole[1] - 1}"
    return f"sample {whole[1]} is beyond the {whole[1]} of a micro-batch" if at > whole[1] else ""
