"""How uneven the frames of the replicas of an encoder are, for any number of replicas."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from mimokit.config import ExperimentConfig
from mimokit.config.runtime import BALANCED, FRAME_PARALLEL
from mimokit.planning.frames.plan import plan_frames
from mimokit.planning.frames.routing import TOLERANCE
from mimokit.planning.frames.samples import SampleWork, order_samples


@dataclass(frozen=True)
class FramePattern:
    """The frames of the samples of micro-batches, which all cost an encoder the same.

    Attributes:
        counts: for each micro-batch of a step, the frames of its samples: entry s, modulo the
            length, for sample s.
        ordered: replicas read the samples in the order of `order_samples`.
        shared: replicas share the frames of a micro-batch as `plan_frames` says.
    """

    counts: tuple[tuple[int, ...], ...]
    ordered: bool = False
    shared: bool = False

    @property
    def mean(self) -> float:
        """Frames per sample."""
        return float(np.mean([np.mean(samples) for samples in self.counts]))

    def per_replica(self, replicas: int, samples: int) -> tuple[tuple[float, ...], ...]:
        """Return the frames that replicas encode, for each micro-batch."""
        return _per_replica(self, replicas, samples)

    def imbalance(self, replicas: int, samples: int) -> float:
        """Return the frames of the slowest replicas over those of the mean ones, at least 1."""
        found = self.per_replica(replicas, samples)
        mean = sum(map(np.mean, found))
        return float(sum(map(max, found)) / mean) if mean else 1.0


@functools.lru_cache(maxsize=4096)
def _per_replica(
    pattern: FramePattern, replicas: int, samples: int
) -> tuple[tuple[float, ...], ...]:
    return tuple(
        _shares(np.resize(counts, replicas * samples), replicas, pattern)
        for counts in pattern.counts
    )


def _shares(counts: np.ndarray, replicas: int, pattern: FramePattern) -> tuple[float, ...]:
    work = SampleWork.of(counts, replicas)
    order = order_samples([work]) if pattern.ordered else range(len(counts))
    read = work.per_replica(order)
    if not pattern.shared or replicas == 1:
        return tuple(read.tolist())
    home = np.repeat(np.arange(replicas), read.astype(np.int64))
    return plan_frames(np.ones(len(home)), replicas, home=home, tolerance=TOLERANCE).load_per_rank


def frame_pattern(config: ExperimentConfig, encoder: str, samples: int) -> FramePattern | None:
    """Return the frames that a config gives an encoder, None if it leaves them to the data set.

    Args:
        config: says whether runs balance them: `runtime.patch_type`, `runtime.sample_order`.
        samples: of a micro-batch over all replicas.
    """
    data, runtime = config.data, config.runtime
    if encoder not in data.modality_frames:
        return None
    counts = [
        tuple(data.frames_of(encoder, number, sample) or 0 for sample in range(samples))
        for number in range(data.num_microbatches)
    ]
    return FramePattern(
        tuple(counts),
        ordered=runtime.sample_order == BALANCED,
        shared=FRAME_PARALLEL in runtime.patch_type,
    )
