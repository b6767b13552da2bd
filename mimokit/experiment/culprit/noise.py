"""What a rounding of gradients makes of gradients and of weights, where it is not measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mimokit.experiment.culprit.first import TOLERANCE
from mimokit.experiment.culprit.placed import Placed, distances, norm_of, placed
from mimokit.experiment.culprit.recorded import (
    BEFORE,
    GRADIENT,
    WEIGHT,
    Array,
    Key,
    Recorded,
    RecordedPart,
)

TOLERANCES = {"float64": 1e-5, "float32": 1e-5, "float16": 2.0**-8, "bfloat16": 2.0**-5}
"""Largest difference of a tensor, relative to its norm, by its type of fewer bits, where no
recording says what a rounding changes."""

FLOOR = 1e-3
"""A gradient is measured against its norm, or this share of the largest gradient of its step if
that is more, as in `verify`: the gradient of a key bias is rounding noise alone."""

TIMES, MOST = 4.0, 2.0
"""Updates may differ by these times the share by which their gradients do, and at most by twice the
larger one. A first update of Adam differs by that share at most. A later one differs by up to twice
that and the root of the number of steps: a mean of gradients over the root of that of squares."""

Floats = NDArray[np.float64]
Pair = tuple[Placed, Placed]


def tolerance_of(parts: Sequence[RecordedPart]) -> float:
    """Return the relative difference that is allowed of a tensor of which nothing is measured."""
    return max(TOLERANCES.get(part.about["dtype"], TOLERANCE) for part in parts)


def floors_of(recorded: Recorded) -> dict[int, float]:
    """Return step -> the root mean square against which its gradients are measured at least."""
    found: dict[int, float] = {}
    for (step, _, phase, _), parts in recorded.parts.items():
        if phase == GRADIENT:
            largest = max(_mean(part.values) for part in parts)
            found[step] = max(found.get(step, 0.0), FLOOR * largest)
    return found


def uncounted(first: Recorded, second: Recorded, key: Key, floors: dict[int, float]) -> Floats:
    """Return by how much each entry of a weight may differ, since its gradients do.

    Adam divides a gradient by its size: where two differ by a share of their size, so do the
    updates, however small both are. An entry whose gradients are within noise of zero says nothing.
    More than what is allowed of a gradient is no noise, and excuses nothing.
    """
    step, call, _, name = key
    before = _pair(first, second, (0, 0, BEFORE, name))
    noise, gradient, update, total = np.zeros((4, 1))
    for earlier in range(step + 1):
        after = _pair(first, second, (earlier, call, WEIGHT, name))
        gradients = _pair(first, second, (earlier, call, GRADIENT, name))
        if gradients is not None:
            most = _most(first, second, (earlier, call, GRADIENT, name), floors[earlier])
            noise = np.maximum(noise, np.minimum(_apart(*gradients), most))
            gradient = np.maximum(gradient, _largest(*gradients))
        if before is not None and after is not None:
            update = np.maximum(update, _largest_update(before, after))
            share = np.divide(noise, gradient, out=np.zeros_like(update), where=gradient > 0)
            total = total + np.minimum(TIMES * share, MOST) * update
        before = after
    return np.nan_to_num(total, nan=0.0, posinf=0.0)


def _pair(first: Recorded, second: Recorded, key: Key) -> Pair | None:
    """Return a tensor of both, or None."""
    if key not in first.parts or key not in second.parts:
        return None
    one, other = placed(first.parts[key], second.parts[key])
    if one is None or other is None or one.shape != other.shape:
        return None
    return one, other


def _most(first: Recorded, second: Recorded, key: Key, floor: float) -> float:
    """Return the largest difference of an entry of a gradient that a rounding explains."""
    parts = first.parts[key]
    size = max(floor, *(_mean(part.values) for part in parts))
    return size * tolerance_of((*parts, *second.parts[key]))


def _mean(values: Array) -> float:
    """Return the root mean square of all entries."""
    return norm_of(values) / math.sqrt(max(1, values.size))


def _apart(one: Placed, other: Placed) -> Floats:
    """Return how far any copy of each entry is from the other recording."""
    return np.maximum(distances(one.whole(), other), distances(other.whole(), one))


def _largest(one: Placed, other: Placed) -> Floats:
    return np.maximum(np.abs(one.whole()), np.abs(other.whole())).astype(np.float64)


def _largest_update(before: Pair, after: Pair) -> Floats:
    moved = [new.whole() - old.whole() for old, new in zip(before, after, strict=True)]
    return np.maximum(*map(np.abs, moved)).astype(np.float64)
