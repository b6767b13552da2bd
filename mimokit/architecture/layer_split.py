"""How Megatron-Core splits the layers of a module over its pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from mimokit.architecture.parallel_sizes import Numbers, ParallelSizes
from mimokit.architecture.tensor_cut import Span


@dataclass(frozen=True)
class StageLayers:
    """Layers on one stage."""

    dense: Numbers
    expert: Numbers

    @property
    def total(self) -> Numbers:
        """All layers of the stage."""
        return self.dense + self.expert


def stage_layers(
    layers: int, dense: int, sizes: ParallelSizes, stage: Numbers, extra: int = 0
) -> StageLayers:
    """Return the layers of a stage.

    Where p v divides the layers every chunk has as many. Where it does not, embedding and loss
    count as layers (Megatron's `account_for_embedding_in_pipeline_split` and `..._loss_...`), so
    that the first and last chunk are shorter, and the chunks in between are rounded up; so do
    `extra` layers of the last chunk that predict tokens further on. Dense layers of a mixture come
    first; with several chunks per stage they are on stage 0 too.
    """
    chunks = sizes.pipeline * sizes.virtual
    even = np.equal(layers % chunks, 0)
    per_chunk = np.ceil((layers + np.where(even, 0, 2 + extra)) / chunks)
    first, last = np.equal(stage, 0), np.equal(stage, sizes.pipeline - 1)
    full = per_chunk * sizes.virtual
    short = full - np.where(even, 0, 1) * (first * 1.0 + last * (1.0 + extra))
    total = np.where(np.equal(sizes.pipeline, 1), layers, np.clip(short, 0, layers))
    if dense >= layers:
        return StageLayers(total, 0 * total)
    here = np.where(first, np.minimum(dense, total), 0)
    return StageLayers(here, total - here)


def stage_spans(layers: int, sizes: ParallelSizes) -> tuple[Span, ...]:
    """Return which layers every stage has; it has one chunk of them."""
    stages = range(int(sizes.pipeline))
    numbers = [int(stage_layers(layers, layers, sizes, stage).total) for stage in stages]
    return tuple(pairwise(accumulate(numbers, initial=0)))
