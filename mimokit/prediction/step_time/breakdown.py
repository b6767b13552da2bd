"""Seconds by what they go into."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from mimokit.architecture.parallel_sizes import Numbers


@dataclass(frozen=True)
class TimeBreakdown:
    """Seconds by what they go into.

    Attributes:
        matrix: matrix products of linear layers.
        attention: attention core.
        memory: elementwise kernels, norms, casts, permutations, gradients added to those before;
            starts and ends of kernels.
        tensor: tensor-parallel collectives that nothing hides.
        context: context-parallel exchange of keys and values that nothing hides.
        expert: dispatch to experts and back.
        host: what the host takes longer to launch than the GPU to compute, and to begin a
            micro-batch.
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
        """All seconds."""
        total: Numbers = sum(getattr(self, field.name) for field in fields(self))
        return total

    def __add__(self, other: TimeBreakdown) -> TimeBreakdown:
        return TimeBreakdown(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(self))
        )

    def times(self, factor: Numbers) -> TimeBreakdown:
        """Return every part times a factor."""
        return TimeBreakdown(*(getattr(self, field.name) * factor for field in fields(self)))

    def at_least(self, seconds: Numbers) -> TimeBreakdown:
        """Return the same with a host part that fills up to `seconds`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["host"] = self.host + np.maximum(0.0, seconds - self.total)
        return TimeBreakdown(**values)


@dataclass(frozen=True)
class LayerTime:
    """What one layer takes, without recomputation.

    Attributes:
        forward: the forward pass.
        backward: the backward pass of layer and input.
        gradients: of a layer that is trained, adding the gradients of its weights to those of the
            micro-batches before: seconds that do not depend on how many tokens there are.
    """

    forward: TimeBreakdown
    backward: TimeBreakdown
    gradients: Numbers


@dataclass(frozen=True)
class StageTime:
    """Forward and backward of one stage for one micro-batch.

    Attributes:
        forward: seconds by part.
        backward: seconds by part, recomputation included.
    """

    forward: TimeBreakdown
    backward: TimeBreakdown

    @property
    def total(self) -> Numbers:
        """Forward and backward."""
        return self.forward.total + self.backward.total
