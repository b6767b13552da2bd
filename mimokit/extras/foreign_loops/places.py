"""Where the parts that ranks have recorded lie in a whole tensor."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimokit.extras.foreign_loops.recording import Array, RecordedPart

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
        cuts: parts along dimensions of samples and positions, of which each rank may take a mean.
    """

    shape: Shape
    parts: tuple[PlacedPart, ...]
    cuts: int = 1

    def whole(self) -> Array:
        """Return the whole tensor."""
        return sum(self._summands().values(), np.zeros(self.shape, np.float32))

    def _summands(self) -> dict[tuple[int, ...], Array]:
        summands: dict[tuple[int, ...], Array] = {}
        for part in reversed(self.parts):  # of copies the first is written last
            values = summands.setdefault(part.summand, np.zeros(self.shape, np.float32))
            values[np.ix_(*part.place)] = part.values
        return summands

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
        return tuple(sorted(rank for rank, apart in self.ranks.items() if not apart <= least))


def apart(
    whole: Array,
    placed: Placed,
    norm: float,
    factor: float = 1.0,
    uncounted: NDArray[np.float64] | None = None,
) -> Apart:
    """Compare all copies of all parts with a whole tensor.

    Args:
        norm: by which a difference is divided.
        factor: by which the parts are multiplied.
        uncounted: of each entry, the difference that is not counted.
    """
    largest, ranks = np.zeros(whole.shape, np.float32), dict[int, float]()
    for rank, at, distance in _distances(whole, placed, factor):
        counted = distance if uncounted is None else np.maximum(0, distance - uncounted[at])
        largest[at] = np.maximum(largest[at], counted)
        share = norm * math.sqrt(counted.size / max(1, whole.size))
        ranks[rank] = max(ranks.get(rank, 0.0), _relative(counted, share))
    return Apart(_relative(largest, norm), ranks)


def distances(whole: Array, placed: Placed) -> Array:
    """Return how far any copy of each entry is from a whole tensor."""
    largest = np.zeros(whole.shape, np.float32)
    for _, at, distance in _distances(whole, placed):
        largest[at] = np.maximum(largest[at], distance)
    return largest


def _distances(
    whole: Array, placed: Placed, factor: float = 1.0
) -> Iterator[tuple[int, Place, Array]]:
    """Yield how far the part of each rank is, and where it lies; what is not finite is far."""
    for rank, place, values in placed.by_rank():
        at = np.ix_(*place)
        distance = np.abs(factor * values - whole[at])
        yield rank, at, np.where(np.isfinite(distance), distance, np.inf)


def norm_of(whole: Array) -> float:
    """Return the norm of a tensor."""
    return float(np.linalg.norm(whole.astype(np.float64)))


def _relative(distance: Array, norm: float) -> float:
    length = norm_of(distance)
    if math.isfinite(norm) and norm:
        return length / norm
    return math.inf if length else 0.0


def placed(
    parts: Sequence[RecordedPart], others: Sequence[RecordedPart]
) -> tuple[Placed | None, Placed | None]:
    """Return where the parts of two recordings lie; None and None if it cannot be told.

    Where neither placements nor marks tell, what is smaller along one dimension than in the other
    recording is cut along it, in the order of the ranks; if several dimensions are possible, that
    which makes the two most alike. Where both have equally many parts of the same shape, each is
    compared with its counterpart.
    """
    if "experts" in parts[0].about and _noted("experts", parts) != _noted("experts", others):
        return None, None  # rows in another order
    own, theirs = _counterparts(parts), _counterparts(others)
    alike = len({each.shape for each in (*own, *theirs)}) == 1
    if (
        len(own) == len(theirs) > 1
        and alike
        and _noted("chunks", parts) == _noted("chunks", others)
    ):
        return _stacked(own), _stacked(theirs)
    pairs = [
        (first, second)
        for first in _arrangements(parts, whole_shapes(others))
        for second in _arrangements(others, whole_shapes(parts))
        if first.shape == second.shape
    ]
    return min(pairs, key=_distance, default=(None, None))


def _distance(pair: tuple[Placed, Placed]) -> float:
    """Return how far two tensors are from each other, but for the factor of a mean of a rank."""
    own, other = pair
    whole = own.whole()
    norm = norm_of(whole)
    return min(apart(whole, other, norm, n).difference for n in {1.0, own.cuts / other.cuts})


def _counterparts(parts: Sequence[RecordedPart]) -> list[Placed]:
    if "whole" in parts[0].about:
        return []
    return groups_of(parts) if "share" in parts[0].about else [_alone(part) for part in parts]


def _arrangements(parts: Sequence[RecordedPart], wholes: set[Shape]) -> Iterator[Placed]:
    """Yield where the parts may lie in a whole of a shape; several are possible without marks.

    Tensor-parallel ranks have shares as marks say. Of what has no marks they have copies, or cut a
    dimension, as heads and slices of sequences are; or each rank has something else.
    Context-parallel ranks have copies, or their chunks along a dimension.
    """
    if "whole" in parts[0].about:
        yield _by_offsets(parts)
        return
    for groups in _groupings(parts):
        joined = (_joined(groups, whole) for whole in wholes)
        yield from {group.shape: group for group in joined if group is not None}.values()


def _groupings(parts: Sequence[RecordedPart]) -> Iterator[list[Placed]]:
    about = parts[0].about
    arranged = [groups_of(parts)]
    if len(about.get("group", ())) > 1 and "share" not in about:
        arranged += [
            [_of_group(members, dimension) for members in _members(parts)]
            for dimension in range(parts[0].values.ndim)
        ]
        arranged.append([_alone(part) for part in parts])
    for groups in arranged:
        yield from _by_contexts(groups, parts) if "context" in about else [groups]


def _noted(what: str, parts: Sequence[RecordedPart]) -> list[Any]:
    return [part.about.get(what) for part in parts]


def _by_contexts(groups: Sequence[Placed], parts: Sequence[RecordedPart]) -> Iterator[list[Placed]]:
    about = {part.rank: part.about for part in parts}
    contexts: dict[tuple[int, ...], list[Placed]] = {}
    for group in groups:
        contexts.setdefault(tuple(about[group.parts[0].rank]["context"]), []).append(group)
    whole = all(len(members) == len(ranks) for ranks, members in contexts.items())
    if not whole or len({group.shape for group in groups}) != 1:
        return
    yield [
        replace(members[0], parts=tuple(part for member in members for part in member.parts))
        for members in contexts.values()
    ]
    for dimension, length in enumerate(groups[0].shape):
        if length % len(about[parts[0].rank]["chunks"]) == 0:
            yield [_of_chunks(members, about, dimension) for members in contexts.values()]


def _of_chunks(
    members: Sequence[Placed], about: Mapping[int, Mapping[str, Any]], dimension: int
) -> Placed:
    shape, own = list(members[0].shape), members[0].shape[dimension]
    shape[dimension] = own * len(members)
    moved = []
    for member in members:
        chunks = about[member.parts[0].rank]["chunks"]
        held = np.arange(shape[dimension]).reshape(len(members) * len(chunks), -1)[chunks].ravel()
        for part in member.parts:
            place = list(part.place)
            place[dimension] = held[place[dimension]]
            moved.append(replace(part, place=tuple(place)))
    return Placed(tuple(shape), tuple(moved), len(members))


def _stacked(groups: Sequence[Placed]) -> Placed:
    stacked = [
        replace(part, place=(np.array([index]), *part.place), values=part.values[None])
        for index, group in enumerate(groups)
        for part in group.parts
    ]
    return Placed((len(groups), *groups[0].shape), tuple(stacked))


def _by_offsets(parts: Sequence[RecordedPart]) -> Placed:
    offset = []
    for part in parts:
        pairs = zip(part.about["offset"], part.values.shape, strict=True)
        place = tuple(np.arange(start, start + size) for start, size in pairs)
        summand = tuple(part.about.get("summand", ()))
        offset.append(PlacedPart(part.rank, place, part.values, summand))
    return Placed(tuple(parts[0].about["whole"]), tuple(offset))


def groups_of(parts: Sequence[RecordedPart]) -> list[Placed]:
    """Return what every group of tensor-parallel ranks has together; or else every rank alone.

    A rank of such a group has a share of every equal part, or a copy where no marks say so. Nothing
    is returned if a rank of a group has recorded nothing.
    """
    if "group" not in parts[0].about:
        return [_alone(part) for part in parts]
    if "share" not in parts[0].about:
        return [_copies(members) for members in _members(parts)]
    return [_of_group(members, members[0].about["dimension"]) for members in _members(parts)]


def _members(parts: Sequence[RecordedPart]) -> list[list[RecordedPart]]:
    groups: dict[tuple[int, ...], list[RecordedPart]] = {}
    for part in parts:
        groups.setdefault(tuple(part.about["group"]), []).append(part)
    whole = all(len(members) == len(group) for group, members in groups.items())
    return list(groups.values()) if whole else []


def _copies(parts: Sequence[RecordedPart]) -> Placed:
    return replace(
        _alone(parts[0]), parts=tuple(each for part in parts for each in _alone(part).parts)
    )


def _alone(part: RecordedPart) -> Placed:
    place = tuple(map(np.arange, part.values.shape))
    return Placed(part.values.shape, (PlacedPart(part.rank, place, part.values),))


def _of_group(members: Sequence[RecordedPart], dimension: int) -> Placed:
    shape, size = list(members[0].values.shape), len(members)
    dimension %= len(shape)
    length, shape[dimension] = shape[dimension], shape[dimension] * size
    number = members[0].about.get("parts", 1)
    pieces = np.arange(shape[dimension]).reshape(number, size, -1)
    shares = []
    for index, part in enumerate(members):
        place = [np.arange(each) for each in shape]
        share = part.about.get("share", (index, size))[0]
        place[dimension] = pieces[:, share].reshape(length)
        shares.append(PlacedPart(part.rank, tuple(place), part.values))
    return Placed(tuple(shape), tuple(shares))


def _joined(groups: Sequence[Placed], whole: Shape) -> Placed | None:
    shapes = {group.shape for group in groups}
    if len(shapes) != 1:
        return None
    (shape,) = shapes
    if len(shape) != len(whole):
        return None
    larger = [n for n, (a, b) in enumerate(zip(shape, whole, strict=True)) if b > a]
    cuts = groups[0].cuts
    if not larger:
        return Placed(shape, tuple(part for group in groups for part in group.parts), cuts)
    dimension, length = larger[0], shape[larger[0]]
    cut = (*shape[:dimension], len(groups) * length, *shape[dimension + 1 :])
    if cut != whole:
        return None
    joined = []
    for index, group in enumerate(groups):
        for part in group.parts:
            place = list(part.place)
            place[dimension] = place[dimension] + index * length
            joined.append(PlacedPart(part.rank, tuple(place), part.values))
    return Placed(whole, tuple(joined), cuts * len(groups))


def whole_shapes(parts: Sequence[RecordedPart]) -> set[Shape]:
    """Return which shapes a whole tensor may have, as far as one recording tells."""
    about = parts[0].about
    if "whole" in about:
        return {tuple(about["whole"])}
    return {group.shape for groups in _groupings(parts) for group in groups}
