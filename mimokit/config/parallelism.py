"""The parallel sizes of one module."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mimokit.config.base import ConfigModel
from mimokit.config.problems import ConfigError, Problem

LARGEST_WORLD = 2**20
"""Ranks. A size above it is taken for a slip: plans list ranks one by one."""

ParallelSize = Annotated[int, Field(ge=1, le=LARGEST_WORLD)]


class ModuleParallelismConfig(ConfigModel):
    """How many ranks one module takes, in which dimensions, and where they begin.

    Attributes:
        tensor_parallel: ranks that share each layer.
        pipeline_parallel: stages that the layers are cut into.
        context_parallel: ranks that share each sequence.
        expert_parallel: ranks that share the experts. A second view of the same ranks: it takes
            no ranks of its own.
        data_parallel: replicas of the module. None: `MimoParallelismConfig.finalize` works it out.
        rank_offset: the first rank of the module in the world.
    """

    tensor_parallel: ParallelSize = 1
    pipeline_parallel: ParallelSize = 1
    context_parallel: ParallelSize = 1
    expert_parallel: ParallelSize = 1
    data_parallel: ParallelSize | None = None
    rank_offset: Annotated[int, Field(ge=0, le=LARGEST_WORLD)] = 0

    @property
    def ranks_per_replica(self) -> int:
        """Ranks of one data-parallel replica, all its pipeline stages together."""
        return self.tensor_parallel * self.context_parallel * self.pipeline_parallel

    @property
    def total_ranks(self) -> int:
        """Ranks of the module.

        Raises:
            ConfigError: data_parallel is still to be worked out by `finalize`.
        """
        if self.data_parallel is None:
            sentence = (
                "ModuleParallelismConfig: data_parallel is empty; give it a value, or call "
                "finalize(world_size) first."
            )
            raise ConfigError([Problem("ModuleParallelismConfig", "data_parallel", None, sentence)])
        return self.ranks_per_replica * self.data_parallel
