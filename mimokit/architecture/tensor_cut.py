"""How parallelism cuts a tensor, and which part of it a rank holds: arithmetic on shapes alone.

A tensor is cut along one dimension at most. Where it consists of equal parts (gate above up), every
rank has a share of each; a vocabulary is padded until the ranks divide it. An expert's tensor lies
on one of the expert-parallel ranks, and is cut over those of expert tensor parallelism.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mimokit.config.sizes import Numbers

Shape = tuple[int, ...]

Span = tuple[int, int]
"""[start, stop)."""


def padded_vocabulary(vocab: int, multiple: int, tensor: Numbers) -> Numbers:
    """Return the rows of a padded embedding: the next multiple of `multiple` x `tensor`."""
    step = multiple * tensor
    return -(-vocab // step) * step


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """The place of a rank among those of one pipeline stage of a module.

    Attributes:
        replica: number among the ranks that hold the same shard of parameters outside experts:
            those of data and context parallelism.
        expert_parallel: ranks over which the experts of a layer are spread.
        expert_replica: number among the ranks that hold the same of the same experts.
    """

    tensor_parallel: int = 1
    tensor_rank: int = 0
    replica: int = 0
    expert_parallel: int = 1
    expert_rank: int = 0
    expert_tensor_parallel: int = 1
    expert_tensor_rank: int = 0
    expert_replica: int = 0


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A block that a rank holds of a tensor; offsets and lengths are those of every dimension."""

    whole: Shape
    local: Shape
    shape: Shape


@dataclass(frozen=True, slots=True)
class TensorCut:
    """How a tensor is cut, whatever the parallel sizes are.

    Attributes:
        dimension: that (expert) tensor parallelism cuts; None: every rank has all of it.
        parts: equal parts of that dimension of which every rank has a share (2: gate above up).
        multiple: the dimension is padded with zeros to a multiple of this times the ranks; None:
            the ranks must divide it.
        expert: number of the expert in its layer; None: the tensor belongs to no expert.
    """

    whole: Shape
    dimension: int | None = None
    parts: int = 1
    multiple: int | None = None
    expert: int | None = None
    experts: int = 0

    def at(self, place: ShardPlace) -> TensorShard:
        """Return what a rank holds."""
        return TensorShard(self, place)

    def shards(self, tensor_parallel: int) -> tuple[TensorShard, ...]:
        """Return the different shards of so many ranks of (expert) tensor parallelism."""
        ranks = 1 if self.dimension is None else tensor_parallel
        if self.expert is None:
            return tuple(self.at(ShardPlace(tensor_parallel, rank)) for rank in range(ranks))
        holder = ShardPlace(
            expert_parallel=self.experts,
            expert_rank=self.expert,
            expert_tensor_parallel=tensor_parallel,
        )
        return tuple(self.at(replace(holder, expert_tensor_rank=rank)) for rank in range(ranks))

    def divides(self, ranks: int) -> bool:
        """Whether a number of ranks can share the tensor."""
        if self.dimension is None or self.multiple is not None:
            return True
        return self.whole[self.dimension] % (self.parts * ranks) == 0

    def padded(self, ranks: int) -> Shape:
        """Return the padded shape over ranks that share the tensor; they have to divide it."""
        if self.dimension is None:
            return self.whole
        length = self.whole[self.dimension]
        if self.multiple is not None:
            length = int(padded_vocabulary(length, self.multiple, ranks))
        elif not self.divides(ranks):
            parts = f" in {self.parts} parts" if self.parts > 1 else ""
            raise ValueError(
                f"{ranks} ranks cannot share dimension {self.dimension}{parts} of a tensor "
                f"{list(self.whole)}; choose a divisor."
            )
        return _with_length(self.whole, self.dimension, length)

    @property
    def words(self) -> str:
        """What is cut, in words."""
        if self.dimension is None:
            return "whole on every rank"
        words = {0: "rows", 1: "columns"}.get(self.dimension, f"dimension {self.dimension}")
        return words if self.parts == 1 else f"{words} of each of {self.parts} parts"


@dataclass(frozen=True, slots=True)
class TensorShard:
    """What a rank holds of a tensor."""

    cut: TensorCut
    place: ShardPlace

    @property
    def _ranks(self) -> int:
        """Ranks that share the tensor, whether or not it is cut."""
        place = self.place
        expert = self.cut.expert is not None
        return place.expert_tensor_parallel if expert else place.tensor_parallel

    @property
    def _number(self) -> int:
        place = self.place
        return place.tensor_rank if self.cut.expert is None else place.expert_tensor_rank

    @property
    def is_held(self) -> bool:
        """Whether the rank holds any of it: all but experts of other ranks."""
        if self.cut.expert is None:
            return True
        return self.cut.expert * self.place.expert_parallel // self.cut.experts == (
            self.place.expert_rank
        )

    @property
    def is_replicated(self) -> bool:
        """Whether other ranks that share the tensor hold the same of it."""
        return self.cut.dimension is None and self._ranks > 1

    @property
    def is_written(self) -> bool:
        """Whether the rank is the one that writes what it holds, of all that hold the same."""
        replica = self.place.replica if self.cut.expert is None else self.place.expert_replica
        return self.is_held and replica == 0 and not (self.is_replicated and self._number)

    @property
    def words(self) -> str:
        """Which shard it is, to put behind a name; nothing where it is the whole tensor."""
        ranks = self._ranks
        if self.cut.dimension is None or ranks == 1:
            return ""
        return f" (shard {self._number} of {ranks})"

    @property
    def shape(self) -> Shape:
        """Shape on a rank that holds it, with padding."""
        padded, dimension = self.cut.padded(self._ranks), self.cut.dimension
        if dimension is None:
            return padded
        return _with_length(padded, dimension, padded[dimension] // self._ranks)

    @property
    def rectangles(self) -> tuple[Rectangle, ...]:
        """The blocks of the whole tensor on the rank, ascending; what they leave is padding."""
        whole, dimension = self.cut.whole, self.cut.dimension
        if not self.is_held:
            return ()
        none = (0,) * len(whole)
        if dimension is None:
            return (Rectangle(none, none, whole),)
        return tuple(
            Rectangle(
                _with_length(none, dimension, start),
                _with_length(none, dimension, local),
                _with_length(whole, dimension, stop - start),
            )
            for start, stop, local in self._spans(dimension)
        )

    @property
    def entries(self) -> int:
        """Entries of the whole tensor on the rank: without padding."""
        return sum(math.prod(block.shape) for block in self.rectangles)

    def places(self, whole: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ascending places in the flattened shard of places in the flattened tensor."""
        dimension = self.cut.dimension
        if dimension is None or not self.is_held:
            return whole if self.is_held else whole[:0]
        inner = math.prod(self.cut.whole[dimension + 1 :])
        outer, rest = np.divmod(whole, self.cut.whole[dimension] * inner)
        along, within = np.divmod(rest, inner)
        shifted = np.full_like(along, -1)
        for start, stop, local in self._spans(dimension):
            here = (start <= along) & (along < stop)
            shifted[here] = along[here] - start + local
        there = (outer * self.shape[dimension] + shifted) * inner + within
        return there[shifted >= 0]

    @property
    def padding(self) -> tuple[slice, ...] | None:
        """The part of the shard that the whole tensor does not have; None: all of it has."""
        dimension = self.cut.dimension
        if dimension is None or self.cut.multiple is None or not self.is_held:
            return None
        real = sum(stop - start for start, stop, _ in self._spans(dimension))
        length = self.shape[dimension]
        return None if real == length else (slice(None),) * dimension + (slice(real, length),)

    def of(self, whole: NDArray[np.generic], padding: float = 0) -> NDArray[np.generic]:
        """Return the shard of an array that has at least the shape of the whole tensor."""
        shard = np.full(self.shape, padding, whole.dtype)
        for block in self.rectangles:
            shard[_slices(block.local, block.shape)] = whole[_slices(block.whole, block.shape)]
        return shard

    def _spans(self, dimension: int) -> list[tuple[int, int, int]]:
        """Return [start, stop) along the dimension that is cut, and the start in the shard."""
        part = self.cut.padded(self._ranks)[dimension] // self.cut.parts
        share = part // self._ranks
        starts = [part * number + share * self._number for number in range(self.cut.parts)]
        stops = [min(start + share, self.cut.whole[dimension]) for start in starts]
        return [
            (start, stop, share * number)
            for number, (start, stop) in enumerate(zip(starts, stops, strict=True))
            if start < stop
        ]


def _with_length(shape: Shape, dimension: int, length: int) -> Shape:
    return (*shape[:dimension], length, *shape[dimension + 1 :])


def _slices(offsets: Shape, lengths: Shape) -> tuple[slice, ...]:
    return tuple(
        slice(start, start + length) for start, length in zip(offsets, lengths, strict=True)
    )
