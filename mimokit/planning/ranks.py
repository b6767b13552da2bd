"""Grids of ranks: the coordinates and groups of each rank, and ranges of samples by rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mimokit.architecture.tensor_cut import ShardPlace
from mimokit.axes import EXPERT_GRID_AXES, GRID_AXES, Axis
from mimokit.config import ModuleParallelismConfig

DIMENSIONS = tuple(map(str, GRID_AXES))
EXPERT_DIMENSIONS = tuple(map(str, EXPERT_GRID_AXES))

Groups = tuple[tuple[int, ...], ...]
SampleRange = tuple[int, int]


@dataclass(frozen=True)
class RankGrid:
    """Consecutive ranks, counted along named dimensions, the first one fastest.

    The enumerations equal those of megatron-core's `HyperCommGrid` (`get_rank_enum`).

    Attributes:
        dimensions: their names; neighbouring ranks differ in the first.
    """

    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    rank_offset: int = 0

    @property
    def size(self) -> int:
        """Number of ranks."""
        return math.prod(self.shape)

    @property
    def ranks(self) -> range:
        """The ranks, ascending."""
        return range(self.rank_offset, self.rank_offset + self.size)

    def size_of(self, *dimensions: str) -> int:
        """Return the number of ranks in a group over the dimensions."""
        return math.prod(self.shape[self._index(name)] for name in dimensions)

    def coordinates(self, rank: int) -> Mapping[str, int]:
        """Return the coordinate of a rank of the grid along every dimension."""
        if rank not in self.ranks:
            last = self.rank_offset + self.size - 1
            raise ValueError(f"rank {rank} is not one of ranks {self.rank_offset} to {last}")
        rest, place = rank - self.rank_offset, {}
        for name, length in zip(self.dimensions, self.shape, strict=True):
            rest, place[name] = divmod(rest, length)
        return place

    def rank(self, **coordinates: int) -> int:
        """Return the rank at the coordinates; a dimension that is left out counts as 0.

        Raises:
            ValueError: an unknown dimension, or a coordinate beyond it.
        """
        for name, coordinate in coordinates.items():
            length = self.shape[self._index(name)]
            if not 0 <= coordinate < length:
                raise ValueError(f"{name} {coordinate} is not one of 0 to {length - 1}")
        rank, stride = self.rank_offset, 1
        for name, length in zip(self.dimensions, self.shape, strict=True):
            rank += coordinates.get(name, 0) * stride
            stride *= length
        return rank

    def group_array(self, *dimensions: str) -> NDArray[np.int64]:
        """Return the groups over the dimensions as an array [groups, ranks of a group].

        Ranks of a group ascend in whatever order the dimensions are named, as in `get_rank_enum`,
        which sorts them.

        Raises:
            ValueError: no dimension, an unknown one, or one named twice.
        """
        chosen = {self._index(name) for name in dimensions}
        if not dimensions or len(chosen) < len(dimensions):
            raise ValueError(
                f"name one or several different dimensions of {', '.join(self.dimensions)}, "
                f"not ({', '.join(dimensions)})"
            )
        slowest_first = range(len(self.shape))[::-1]
        axis_of = {index: axis for axis, index in enumerate(slowest_first)}
        order = [axis_of[index] for index in slowest_first if index not in chosen]
        order += [axis_of[index] for index in slowest_first if index in chosen]
        return self.block().transpose(order).reshape(-1, self.size_of(*dimensions))

    def groups(self, *dimensions: str) -> Groups:
        """Return the groups over one or several dimensions, as `group_array` orders them."""
        return tuple(map(tuple, self.group_array(*dimensions).tolist()))

    def group_of(self, rank: int, *dimensions: str) -> tuple[int, ...]:
        """Return the group over the dimensions that a rank of the grid is in."""
        place = self.coordinates(rank)
        self.size_of(*dimensions)  # rejects unknown dimensions
        through = [slice(None) if name in dimensions else place[name] for name in self.dimensions]
        return tuple(self.block()[tuple(reversed(through))].ravel().tolist())

    def block(self) -> NDArray[np.int64]:
        """Return the ranks as an array with an axis per dimension, the first dimension last."""
        ranks = np.arange(self.rank_offset, self.rank_offset + self.size, dtype=np.int64)
        return ranks.reshape(self.shape[::-1])

    def _index(self, name: str) -> int:
        if name not in self.dimensions:
            raise ValueError(f"'{name}' is not one of {', '.join(self.dimensions)}")
        return self.dimensions.index(name)


@dataclass(frozen=True, kw_only=True)
class ModuleRanks(RankGrid):
    """The ranks of one module in the order tp-cp-dp-pp: tensor-parallel neighbours are adjacent.

    Groups equal those of megatron-core's `HyperCommGrid([tp, cp, dp, pp], ["tp", "cp", "dp",
    "pp"], rank_offset)`.
    """

    module: str
    expert_parallel: int = 1
    expert_tensor_parallel: int = 1

    @classmethod
    def of(cls, module: str, sizes: ModuleParallelismConfig) -> ModuleRanks:
        """Return the map of a module; raise `ConfigError` if its data_parallel is missing."""
        shape = (
            sizes.tensor_parallel,
            sizes.context_parallel,
            sizes.total_ranks // sizes.ranks_per_replica,
            sizes.pipeline_parallel,
        )
        return cls(
            DIMENSIONS,
            shape,
            sizes.rank_offset,
            module=module,
            expert_parallel=sizes.expert_parallel,
            expert_tensor_parallel=sizes.in_runs("expert_tensor_parallel"),
        )

    @property
    def tensor_parallel(self) -> int:
        """Ranks over which every layer is cut."""
        return self.shape[0]

    @property
    def context_parallel(self) -> int:
        """Ranks over which every sequence is cut."""
        return self.shape[1]

    @property
    def data_parallel(self) -> int:
        """Replicas of the module."""
        return self.shape[2]

    @property
    def pipeline_parallel(self) -> int:
        """Pipeline stages of the module."""
        return self.shape[3]

    @property
    def ranks_per_stage(self) -> int:
        """Ranks of one pipeline stage."""
        return self.tensor_parallel * self.context_parallel * self.data_parallel

    def stage(self, index: int) -> range:
        """Return the ranks of a pipeline stage; -1 is the last."""
        start = self.rank_offset + (index % self.pipeline_parallel) * self.ranks_per_stage
        return range(start, start + self.ranks_per_stage)

    def in_first_stage(self) -> ModuleRanks:
        """Return the ranks of the first pipeline stage: those of a module that is whole there."""
        return replace(self, shape=(*self.shape[:-1], 1))

    def expert_view(self) -> RankGrid:
        """Return the same ranks as experts see them: expt_tp, ep, expt_dp, pp.

        Expert parallelism takes no additional ranks: each stage's tp x cp x dp ranks are counted
        again as expt_tp x ep x expt_dp, so that the pipeline groups are the same in both views.
        """
        parts = self.expert_tensor_parallel, self.expert_parallel
        replicas = self.ranks_per_stage // math.prod(parts)
        shape = (*parts, replicas, self.pipeline_parallel)
        return RankGrid(EXPERT_DIMENSIONS, shape, self.rank_offset)

    def shard_place(self, rank: int) -> ShardPlace:
        """Return the place of a rank among those of its stage, which decides what it holds."""
        place, experts = self.coordinates(rank), self.expert_view()
        expert_place = experts.coordinates(rank)
        return ShardPlace(
            tensor_parallel=self.tensor_parallel,
            tensor_rank=place[Axis.TENSOR],
            replica=place[Axis.CONTEXT] + self.context_parallel * place[Axis.DATA],
            expert_parallel=self.expert_parallel,
            expert_rank=expert_place[Axis.EXPERT],
            expert_tensor_parallel=experts.size_of(Axis.EXPERT_TENSOR),
            expert_tensor_rank=expert_place[Axis.EXPERT_TENSOR],
            expert_replica=expert_place[Axis.EXPERT_DATA],
        )


@dataclass(frozen=True, eq=False)
class RankRanges(Mapping[int, SampleRange]):
    """rank -> [start, stop), for blocks of ranks that take the pieces in turn.

    Rank r has piece `(r - rank_offset) // ranks_per_piece % pieces`, and piece p is the samples
    [p * size, (p + 1) * size). Its size does not depend on the number of ranks. It equals any
    mapping with the same entries.

    Attributes:
        spans: the ranks that have an entry.
        rank_offset: the rank from which blocks are counted.
        pieces: pieces before they repeat.
    """

    spans: tuple[range, ...]
    rank_offset: int
    ranks_per_piece: int
    pieces: int
    size: int

    def __getitem__(self, rank: int) -> SampleRange:
        if not any(rank in span for span in self.spans):
            raise KeyError(rank)
        start = (rank - self.rank_offset) // self.ranks_per_piece % self.pieces * self.size
        return start, start + self.size

    def __iter__(self) -> Iterator[int]:
        for span in self.spans:
            yield from span

    def __len__(self) -> int:
        return sum(map(len, self.spans))
