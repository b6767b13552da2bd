"""What a rounding of gradients makes of gradients and of weights, where it is not measured."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mimokit.experiment.tolerances import TOLERANCE, allowed_of
from mimokit.extras.foreign_loops import recording
from mimokit.extras.foreign_loops.places import Placed, Shape, distances, norm_of, placed

TOLERANCES = {"float64": 1e-5, "float32": 1e-5, "float16": 2.0**-8, "bfloat16": 2.0**-5}
"""Largest difference of a tensor, relative to its norm, by its type of fewer bits, where no
recording says what a rounding changes."""

FLOOR = 1e-3
"""A gradient is measured against its root mean square, or this share of the largest entry of all
gradients of its step if that is more, as in `verify`: the gradient of a key bias is noise alone."""

TIMES, MOST = 4.0, 2.0
"""Updates may differ by these times the share by which their gradients do, and at most by twice the
larger one. A first update of Adam differs by that share at most. A later one differs by up to twice
that and the root of the number of steps: a mean of gradients over the root of that of squares."""

Floats = NDArray[np.float64]
Pair = tuple[Placed, Placed]


def tolerance_of(parts: Sequence[recording.RecordedPart]) -> float:
    """Return the relative difference that is allowed of a tensor of which nothing is measured."""
    return max(TOLERANCES.get(part.about["dtype"], TOLERANCE) for part in parts)


class NoiseOfSteps:
    """What noise explains of each step of two recordings, as they are compared in order."""

    def __init__(self, first: recording.Recorded, second: recording.Recorded) -> None:
        self._first, self._second = first, second
        self._floors = _floors(first)
        self._squares: dict[int, float] = {}
        self._explained: dict[int, float] = {}

    def add(self, key: recording.Key, norm: float, share: float = 0.0) -> None:
        """Add a weight after a step, and the share of its norm that noise explains."""
        self._squares[key[0]] = self._squares.get(key[0], 0.0) + norm**2
        self._explained[key[0]] = self._explained.get(key[0], 0.0) + (share * norm) ** 2

    def floor(self, key: recording.Key) -> float:
        """Return the root mean square against which a tensor is measured at least."""
        return self._floors.get(key[0], 0.0) if key[2] == recording.GRADIENT else 0.0

    def allowed(self, key: recording.Key) -> float:
        """Return the relative difference of a tensor that the weights before its step explain.

        That of a weight is explained by the gradients alone.
        """
        squares = self._squares.get(key[0] - 1, 0.0)
        if key[2] == recording.WEIGHT or not squares:
            return 0.0
        return allowed_of(math.sqrt(self._explained[key[0] - 1] / squares))

    def uncounted(self, key: recording.Key, shape: Shape) -> Floats:
        """Return by how much each entry of a weight may differ, since its gradients do.

        Adam divides a gradient by its size: where two differ by a share of their size, so do the
        updates, however small both are. An entry whose gradients are within noise of zero says
        nothing. More than what is allowed of a gradient is not noise, and excuses nothing.
        """
        step, call, _, name = key
        before = self._pair((0, 0, recording.BEFORE, name), shape)
        noise = gradient = update = total = np.zeros(shape)
        for earlier in range(step + 1):
            after = self._pair((earlier, call, recording.WEIGHT, name), shape)
            of_gradient = earlier, call, recording.GRADIENT, name
            gradients = self._pair(of_gradient, shape)
            if gradients is not None:
                noise = np.maximum(noise, np.minimum(_apart(*gradients), self._most(of_gradient)))
                gradient = np.maximum(gradient, _largest(*gradients))
            if before is not None and after is not None:
                update = np.maximum(update, _largest_update(before, after))
                share = np.divide(noise, gradient, out=np.zeros(shape), where=gradient > 0)
                total = total + np.minimum(TIMES * share, MOST) * update
            before = after
        return np.nan_to_num(total, nan=0.0, posinf=0.0)

    def _pair(self, key: recording.Key, shape: Shape) -> Pair | None:
        if key not in self._first.parts or key not in self._second.parts:
            return None
        own, other = placed(self._first.parts[key], self._second.parts[key])
        if own is None or other is None or not own.shape == other.shape == shape:
            return None
        return own, other

    def _most(self, key: recording.Key) -> float:
        parts = self._first.parts[key]
        allowed = max(tolerance_of((*parts, *self._second.parts[key])), self.allowed(key))
        return allowed * max(self.floor(key), *(_mean(part.values) for part in parts))


def _floors(recorded: recording.Recorded) -> dict[int, float]:
    floors: dict[int, float] = {}
    for (step, _, phase, _), parts in recorded.parts.items():
        if phase == recording.GRADIENT:
            largest = max(float(np.abs(part.values).max(initial=0.0)) for part in parts)
            floors[step] = max(floors.get(step, 0.0), FLOOR * largest)
    return floors


def _mean(values: recording.Array) -> float:
    return norm_of(values) / math.sqrt(max(1, values.size))


def _apart(own: Placed, other: Placed) -> Floats:
    return np.maximum(distances(own.whole(), other), distances(other.whole(), own))


def _largest(own: Placed, other: Placed) -> Floats:
    return np.maximum(np.abs(own.whole()), np.abs(other.whole())).astype(np.float64)


def _largest_update(before: Pair, after: Pair) -> Floats:
    moved = [new.whole() - old.whole() for old, new in zip(before, after, strict=True)]
    return np.maximum(*map(np.abs, moved)).astype(np.float64)
