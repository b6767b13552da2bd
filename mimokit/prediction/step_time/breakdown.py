"""Seconds of layers and stages, by part."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from mimokit.config.sizes import Numbers

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


_NONE = np.float64(0)


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

    @cached_property
    def total(self) -> Numbers:
        """Sum of all parts."""
        return sum(self.parts, _NONE)

    @property
    def parts(self) -> tuple[Numbers, ...]:
        """The seconds of all parts, in the order of `PARTS`."""
        products = self.matrix, self.attention, self.memory
        return (*products, self.tensor, self.context, self.expert, self.host)

    def __add__(self, other: TimeBreakdown) -> TimeBreakdown:
        return TimeBreakdown(*map(operator.add, self.parts, other.parts))

    def times(self, factor: Numbers) -> TimeBreakdown:
        """Return every part times a factor."""
        return TimeBreakdown(*[part * factor for part in self.parts])


PARTS = tuple(field.name for field in fields(TimeBreakdown))
"""Names of the parts."""


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

    @cached_property
    def total(self) -> Numbers:
        """Forward and backward."""
        return self.forward.total + self.backward.total
