"""Which rank holds which shard of a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mimokit.config import ModuleParallelismConfig
from mimokit.planning.rank_grid import Groups, RankGrid

DIMENSIONS = ("tp", "cp", "dp", "pp")
EXPERT_DIMENSIONS = ("expt_tp", "ep", "expt_dp", "pp")


@dataclass(frozen=True)
class RankMap:
    """The ranks of one module in the order tp-cp-dp-pp: tensor-parallel neighbours are adjacent.

    Groups equal those of megatron-core's `HyperCommGrid([tp, cp, dp, pp], ["tp", "cp", "dp",
    "pp"], rank_offset)`.
    """

    module: str
    tensor_parallel: int
    context_parallel: int
    data_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    rank_offset: int

    @classmethod
    def of(cls, module: str, sizes: ModuleParallelismConfig) -> RankMap:
        """Return the map of a module whose sizes are all known.

        Raises:
            ConfigError: data_parallel is missing.
        """
        return cls(
            module,
            sizes.tensor_parallel,
            sizes.context_parallel,
            sizes.total_ranks // sizes.ranks_per_replica,
            sizes.pipeline_parallel,
            sizes.expert_parallel,
            sizes.rank_offset,
        )

    @property
    def grid(self) -> RankGrid:
        """The ranks as a hyperrectangle tp, cp, dp, pp."""
        shape = (
            self.tensor_parallel,
            self.context_parallel,
            self.data_parallel,
            self.pipeline_parallel,
        )
        return RankGrid(DIMENSIONS, shape, self.rank_offset)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.grid.size

    @property
    def ranks(self) -> range:
        """The ranks, ascending."""
        return self.grid.ranks

    @property
    def ranks_per_stage(self) -> int:
        """Ranks of one pipeline stage."""
        return self.tensor_parallel * self.context_parallel * self.data_parallel

    def stage(self, index: int) -> range:
        """Return the ranks of a pipeline stage; -1 is the last."""
        start = self.rank_offset + (index % self.pipeline_parallel) * self.ranks_per_stage
        return range(start, start + self.ranks_per_stage)

    def coordinates(self, rank: int) -> Mapping[str, int]:
        """Return {"tp", "cp", "dp", "pp"} of a rank.

        Raises:
            ValueError: the rank holds nothing of the module.
        """
        return self.grid.coordinates(rank)

    def rank(self, **coordinates: int) -> int:
        """Return the rank at the coordinates; a dimension that is left out counts as 0.

        Raises:
            ValueError: an unknown dimension, or a coordinate beyond it.
        """
        return self.grid.rank(**coordinates)

    def groups(self, *dimensions: str) -> Groups:
        """Return the rank groups over one or several dimensions, ranks ascending in each.

        Raises:
            ValueError: no dimension, an unknown one, or one named twice.
        """
        return self.grid.groups(*dimensions)

    def group_array(self, *dimensions: str) -> NDArray[np.int64]:
        """Return `groups` as an array [groups, ranks of a group]."""
        return self.grid.group_array(*dimensions)

    def group_of(self, rank: int, *dimensions: str) -> tuple[int, ...]:
        """Return the group over the dimensions that a rank is in."""
        return self.grid.group_of(rank, *dimensions)

    def expert_view(self) -> RankGrid:
        """Return the same ranks as experts see them: expt_tp (1), ep, expt_dp, pp.

        Expert parallelism takes no ranks of its own: each stage's tp x cp x dp ranks are counted
        again as ep x expt_dp, so that the pipeline groups are the same in both views.
        """
        replicas = self.ranks_per_stage // self.expert_parallel
        shape = (1, self.expert_parallel, replicas, self.pipeline_parallel)
        return RankGrid(EXPERT_DIMENSIONS, shape, self.rank_offset)
