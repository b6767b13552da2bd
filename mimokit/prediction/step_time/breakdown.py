"""Seconds of layers and stages, by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from mimokit.architecture.parallel_sizes import Numbers

PART_WORDS: Mapping[str, str] = {
    "matrix": "matrix products",
    "attention": "attention",
    "memory": "elementwise kernels",
    "tensor": "tensor parallel",
    "context": "context parallel",
    "expert": "expert dispatch",
    "host": "host",
    "pipeline": "sends between stages",
    "encoder": "encoders",
    "bridge": "bridges",
    "update": "gradients and optimizer",
    "bubble": "pipeline bubble",
}
"""Names of the parts of a predicted step in texts and legends."""


@dataclass(frozen=True)
class TimeBreakdown:
    """Seconds by part.

    Attributes:
        memory: elementwise kernels, norms, casts, permutations and gradient accumulation; starts
            and ends of kernels.
        context: context-parallel exchange of keys and values that is not overlapped.
        host: time that the GPU waits for the host, to launch kernels and to start a micro-batch.
    """

    matrix: Numbers = 0.0
    attention: Numbers = 0.0
    memory: Numbers = 0.0
    tensor: Numbers = 0.0
    context: Numbers = 0.0
    expert: Numbers = 0.0
    host: Numbers = 0.0

    @property
    def total(self) -> Numbers:
        """Sum of all parts."""
        return sum((getattr(self, name) for name in PARTS), np.float64(0))

    def __add__(self, other: TimeBreakdown) -> TimeBreakdown:
        return TimeBreakdown(*(getattr(self, name) + getattr(other, name) for name in PARTS))

    def times(self, factor: Numbers) -> TimeBreakdown:
        """Return every part times a factor."""
        return TimeBreakdown(*(getattr(self, name) * factor for name in PARTS))

    def at_least(self, seconds: Numbers) -> TimeBreakdown:
        """Return the same, with a host part that makes the total at least `seconds`."""
        values = {name: getattr(self, name) for name in PARTS}
        values["host"] = self.host + np.maximum(0.0, seconds - self.total)
        return TimeBreakdown(**values)


PARTS = tuple(field.name for field in fields(TimeBreakdown))
"""Names of the parts, read once: every term of a prediction is added part by part."""


@dataclass(frozen=True)
class LayerTime:
    """Seconds of one layer, without recomputation.

    Attributes:
        backward: the backward pass, for the gradients of the input and, in training, of weights.
        weights: the seconds of `backward` in gradients of weights.
    """

    forward: TimeBreakdown
    backward: TimeBreakdown
    weights: Numbers = 0.0


@dataclass(frozen=True)
class StageTime:
    """Forward and backward of one stage for one micro-batch.

    Attributes:
        backward: seconds by part, recomputation included.
        weights: the seconds of `backward` in gradients of weights, where they come apart from those
            of inputs.
    """

    forward: TimeBreakdown
    backward: TimeBreakdown
    weights: Numbers = 0.0

    @property
    def total(self) -> Numbers:
        """Forward and backward."""
        return self.forward.total + self.backward.total
