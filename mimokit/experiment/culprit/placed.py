"""Where the parts that ranks have recorded lie in a whole tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mimokit.experiment.culprit.recorded import Array, RecordedPart

Shape = tuple[int, ...]
Place = tuple[NDArray[np.int64], ...]
"""Of every dimension the indices that a part has."""


@dataclass(frozen=True)
class PlacedPart:
    """The part of a rank.

    Attributes:
        summand: of a sum that is not complete; parts with the same summand are copies.
    """

    rank: int
    place: Place
    values: Array
    summand: tuple[int, ...] = ()


@dataclass(frozen=True)
class Placed:
    """A tensor by the parts of all ranks; the first copy of each part makes the whole.

    Attributes:
        cuts: parts along a dimension that its shape alone tells, such as that of samples.
    """

    shape: Shape
    parts: tuple[PlacedPart, ...]
    cuts: int = 1

    def whole(self) -> Array:
        """Return the whole tensor."""
        return sum(self._summands().values(), np.zeros(self.shape, np.float32))

    def _summands(self) -> dict[tuple[int, ...], Array]:
        found: dict[tuple[int, ...], Array] = {}
        for part in reversed(self.parts):  # of copies the first is written last
            values = found.setdefault(part.summand, np.zeros(self.shape, np.float32))
            values[np.ix_(*part.place)] = part.values
        return found

    def by_rank(self) -> Iterator[tuple[int, Place, Array]]:
        """Yield for every rank its part of the whole, if its copies of summands are taken."""
        summands = self._summands()
        whole = self.whole()
        for part in self.parts:
            values = part.values
            if len(summands) > 1:
                at = np.ix_(*part.place)
                values = whole[at] - summands[part.summand][at] + values
            yield part.rank, part.place, values


@dataclass(frozen=True)
class Apart:
    """How far a tensor is from another, relative to the norm of that one.

    Attributes:
        ranks: -> how far the part of a rank is, relative to its share of the norm.
    """

    difference: float
    ranks: dict[int, float]

    def deviating(self, allowed: float) -> tuple[int, ...]:
        """Return the ranks whose part differs by more than is allowed, or else the most."""
        least = min(allowed, max(self.ranks.values(), default=0.0) * (1 - 1e-6))
        return tuple(rank for rank, difference in self.ranks.items() if not difference <= least)


def apart(whole: Array, placed: Placed, norm: float, factor: float = 1.0) -> Apart:
    """Compare all copies of all parts with a whole tensor.

    Args:
        norm: by which a difference is divided.
        factor: by which the parts are multiplied.
    """
    distances, ranks = np.zeros(whole.shape, np.float32), dict[int, float]()
    for rank, place, values in placed.by_rank():
        at = np.ix_(*place)
        distance = np.abs(factor * values - whole[at])
        distance = np.where(np.isfinite(distance), distance, np.inf)
        distances[at] = np.maximum(distances[at], distance)
        share = norm * math.sqrt(values.size / max(1, whole.size))
        ranks[rank] = max(ranks.get(rank, 0.0), _relative(distance, share))
    return Apart(_relative(distances, norm), ranks)


def _relative(distance: Array, norm: float) -> float:
    length = float(np.linalg.norm(distance.astype(np.float64)))
    if math.isfinite(norm) and norm:
        return length / norm
    return math.inf if length else 0.0


def placed(
    parts: Sequence[RecordedPart], others: Sequence[RecordedPart]
) -> tuple[Placed | None, Placed | None]:
    """Return where the parts of two recordings lie; None for parts of which it cannot be told.

    Where neither placements nor marks tell, what is smaller along one dimension than in the other
    recording is cut along it, in the order of the ranks. Where both have equally many parts of the
    same shape, each is compared with its counterpart.
    """
    if "whole" not in parts[0].about and "whole" not in others[0].about:
        one, two = groups_of(parts), groups_of(others)
        shapes = {group.shape for group in (*one, *two)}
        if len(one) == len(two) > 1 and len(shapes) == 1:
            return _stacked(one), _stacked(two)
    return _placed(parts, others), _placed(others, parts)


def _placed(parts: Sequence[RecordedPart], others: Sequence[RecordedPart]) -> Placed | None:
    if "whole" in parts[0].about:
        return _by_offsets(parts)
    groups, wholes = groups_of(parts), whole_shapes(others)
    shapes = {group.shape for group in groups}
    if len(shapes) != 1 or len(wholes) != 1:
        return None
    (shape,), (whole,) = shapes, wholes
    return _joined(groups, shape, whole)


def _stacked(groups: Sequence[Placed]) -> Placed:
    """Return a tensor with the groups along a first dimension."""
    found = [
        replace(part, place=(np.array([index]), *part.place), values=part.values[None])
        for index, group in enumerate(groups)
        for part in group.parts
    ]
    return Placed((len(groups), *groups[0].shape), tuple(found))


def _by_offsets(parts: Sequence[RecordedPart]) -> Placed:
    found = []
    for part in parts:
        pairs = zip(part.about["offset"], part.values.shape, strict=True)
        place = tuple(np.arange(start, start + size) for start, size in pairs)
        summand = tuple(part.about.get("summand", ()))
        found.append(PlacedPart(part.rank, place, part.values, summand))
    return Placed(tuple(parts[0].about["whole"]), tuple(found))


def groups_of(parts: Sequence[RecordedPart]) -> list[Placed]:
    """Return what every group of tensor-parallel ranks has together; or else every rank alone.

    A rank of such a group has a share of every equal part. Nothing is returned if a rank of a group
    has recorded nothing.
    """
    if "share" not in parts[0].about:
        return [_alone(part) for part in parts]
    groups: dict[tuple[int, ...], list[RecordedPart]] = {}
    for part in parts:
        groups.setdefault(tuple(part.about["group"]), []).append(part)
    if any(len(members) != len(group) for group, members in groups.items()):
        return []
    return [_of_group(members) for members in groups.values()]


def _alone(part: RecordedPart) -> Placed:
    place = tuple(map(np.arange, part.values.shape))
    return Placed(part.values.shape, (PlacedPart(part.rank, place, part.values),))


def _of_group(parts: Sequence[RecordedPart]) -> Placed:
    about, shape = parts[0].about, list(parts[0].values.shape)
    dimension, size = about["dimension"] % len(shape), about["share"][1]
    length, shape[dimension] = shape[dimension], shape[dimension] * size
    pieces = np.arange(shape[dimension]).reshape(about["parts"], size, -1)
    found = []
    for part in parts:
        place = [np.arange(each) for each in shape]
        place[dimension] = pieces[:, part.about["share"][0]].reshape(length)
        found.append(PlacedPart(part.rank, tuple(place), part.values))
    return Placed(tuple(shape), tuple(found))


def _joined(groups: Sequence[Placed], shape: Shape, whole: Shape) -> Placed | None:
    """Return the whole of groups that have copies of it, or that cut it along a dimension."""
    if len(shape) != len(whole):
        return None
    larger = [n for n, (a, b) in enumerate(zip(shape, whole, strict=True)) if b > a]
    if not larger:
        return Placed(shape, tuple(part for group in groups for part in group.parts))
    (dimension, *further), length = larger, shape[larger[0]]
    if further or whole[dimension] != len(groups) * length:
        return None
    found = []
    for index, group in enumerate(groups):
        for part in group.parts:
            place = list(part.place)
            place[dimension] = place[dimension] + index * length
            found.append(PlacedPart(part.rank, tuple(place), part.values))
    return Placed(whole, tuple(found), len(groups))


def whole_shapes(parts: Sequence[RecordedPart]) -> set[Shape]:
    """Return which shape a whole tensor has, as far as one recording tells."""
    about = parts[0].about
    if "whole" in about:
        return {tuple(about["whole"])}
    return {group.shape for group in groups_of(parts)}
