"""The parallel sizes of one module."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from mimokit.axes import CONFIG_FIELDS, Axis
from mimokit.config.base import ConfigModel
from mimokit.config.errors import ConfigError, Problem

LARGEST_WORLD = 2**20
"""Ranks. A larger size is rejected as a mistake: plans list ranks one by one."""

ParallelSize = Annotated[int, Field(ge=1, le=LARGEST_WORLD)]


LEFT_OUT: Mapping[str, Any] = {
    CONFIG_FIELDS[Axis.EXPERT_TENSOR]: 1,
    "moe_token_dispatcher_type": "alltoall",
    "virtual_pipeline_model_parallel_size": 1,
    "recompute_granularity": "none",
    "num_distributed_optimizer_instances": 1,
    "sequence_parallel": False,
    "use_distributed_optimizer": False,
    "use_megatron_fsdp": False,
    "overlap_grad_reduce": False,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
}
"""Field of `ModuleParallelismConfig` that may be None -> what None means in runs and in
predictions of them; the one place."""


class ModuleParallelismConfig(ConfigModel):
    """The parallel sizes of one module and its first rank.

    From virtual_pipeline_model_parallel_size on, fields have Megatron-Core's names. Those that runs
    do not support yet are planned and predicted. None is not written to files.
    """

    tensor_parallel: ParallelSize = 1
    """Ranks that share each layer."""

    pipeline_parallel: ParallelSize = 1
    """Stages that the layers are cut into."""

    context_parallel: ParallelSize = 1
    """Ranks that share each sequence: each has two chunks of a causal one, else one chunk."""

    expert_parallel: ParallelSize = 1
    """Ranks that share the experts. It is a second view of the same ranks and adds none."""

    data_parallel: ParallelSize | None = None
    """Replicas of the module. None: `MimoParallelismConfig.finalize` computes it."""

    rank_offset: Annotated[int, Field(ge=0, le=LARGEST_WORLD)] = 0
    """The first rank of the module in the world."""

    expert_tensor_parallel: ParallelSize | None = None
    """Ranks over which each expert is cut, also among those of a stage. None: 1."""

    moe_token_dispatcher_type: Literal["alltoall", "allgather"] | None = None
    """How tokens reach the experts of other ranks: each is sent where it goes, or all are gathered
    by every rank. None: alltoall."""

    virtual_pipeline_model_parallel_size: ParallelSize | None = None
    """Chunks of layers per stage, interleaved; those of colocated encoders do not run. None: 1."""

    recompute_granularity: Literal["selective", "full"] | None = None
    """selective: the backward pass recomputes the attention core. full: it recomputes whole
    layers, one by one. None: no recomputation."""

    num_distributed_optimizer_instances: ParallelSize | None = None
    """Replicas of the shards of the distributed optimizer, without which it changes nothing. None:
    1."""

    sequence_parallel: bool | None = None
    """Activations that tensor parallelism does not shard are sharded along the sequence, which has
    to divide evenly in runs; positions of encoders are padded. Experts need it where layers are
    shared. None: no."""

    use_distributed_optimizer: bool | None = None
    """Optimizer state is sharded over data and context ranks (ZeRO-1). None: no."""

    use_megatron_fsdp: bool | None = None
    """Weights and gradients of layers are sharded as well; runs do it with torch's `fully_shard`
    (FSDP2). None: no."""

    overlap_grad_reduce: bool | None = None
    """Gradients are reduced during the last backward pass of a step, in buckets, as they become
    complete. None: no."""

    account_for_embedding_in_pipeline_split: bool | None = None
    """The embedding counts as a layer when layers are assigned to stages. None: no."""

    account_for_loss_in_pipeline_split: bool | None = None
    """The loss counts as a layer likewise, and so does each of `mtp_num_layers`. Set both or
    neither."""

    def in_runs(self, field: str) -> Any:
        """Return the value of a field of `LEFT_OUT` with which the module runs."""
        value = getattr(self, field)
        return LEFT_OUT[field] if value is None else value

    @property
    def ranks_per_replica(self) -> int:
        """Ranks of one data-parallel replica, all its pipeline stages together."""
        return self.tensor_parallel * self.context_parallel * self.pipeline_parallel

    @property
    def total_ranks(self) -> int:
        """Ranks of the module; `ConfigError` until `finalize` has worked out data_parallel."""
        if self.data_parallel is None:
            sentence = (
                "ModuleParallelismConfig: data_parallel is empty; give it a value, or call "
                "finalize(world_size) first."
            )
            raise ConfigError([Problem("ModuleParallelismConfig", "data_parallel", None, sentence)])
        return self.ranks_per_replica * self.data_parallel
