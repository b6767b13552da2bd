"""Micro-batches whose activations a pipeline stage holds at once."""

from __future__ import annotations

import numpy as np

from mimokit.architecture.parallel_sizes import Numbers, ParallelSizes


def micro_batches_in_flight(
    sizes: ParallelSizes, micro_batches: Numbers, stage: Numbers
) -> Numbers:
    """Return the micro-batches of a whole stage that are alive at once; may be a fraction.

    1F1B: min(m, p - i) on stage i. Interleaved: Megatron's warm-up of 2 (p - i - 1) + (v - 1) p
    chunks and the one in work, so 1 + (p - 1) / (p v) times p on stage 0 (arXiv 2205.05198, sec.
    4.2.3).
    """
    after = sizes.pipeline - stage
    chunks = 2 * (after - 1) + (sizes.virtual - 1) * sizes.pipeline + 1
    interleaved = np.minimum(micro_batches, chunks / sizes.virtual)
    plain = np.minimum(micro_batches, after)
    return np.where(np.greater(sizes.virtual, 1), interleaved, plain)


def micro_batches_through(sizes: ParallelSizes, micro_batches: Numbers) -> Numbers:
    """Return the micro-batches whose input to a whole pipeline is alive at once.

    What stands before the first chunk, an encoder say, is needed again when its gradient arrives.
    1F1B: p. Interleaved: 2 p, as p more enter the first chunk before the first p are back there.
    """
    groups = np.where(np.greater(sizes.virtual, 1), 2, 1)
    return np.minimum(micro_batches, groups * sizes.pipeline)
