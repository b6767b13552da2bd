"""Parallel sizes as fields of a `ModuleParallelismConfig`, both ways.

Recomputation of whole layers is Megatron's `full` one layer at a time (`uniform`, 1).
"""

from __future__ import annotations

from typing import Any

from mimokit.architecture.parallel_sizes import RECOMPUTE_NAMES, Numbers, ParallelSizes
from mimokit.config import ModuleParallelismConfig

_ENDS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")


def sizes_of(module: ModuleParallelismConfig, replicas: int, micro_batch: Numbers) -> ParallelSizes:
    """Return what a config says of a module.

    Args:
        module: its fields.
        replicas: its data_parallel, which the config may leave open.
        micro_batch: samples per replica and micro-batch.
    """
    return ParallelSizes(
        tensor=module.tensor_parallel,
        pipeline=module.pipeline_parallel,
        virtual=module.virtual_pipeline_model_parallel_size or 1,
        context=module.context_parallel,
        expert=module.expert_parallel,
        data=replicas,
        micro_batch=micro_batch,
        recompute=RECOMPUTE_NAMES.index(module.recompute_granularity or RECOMPUTE_NAMES[0]),
        instances=module.num_distributed_optimizer_instances or 1,
        sequence_parallel=module.sequence_parallel is not False,
        distributed_optimizer=module.use_distributed_optimizer is not False,
        fully_sharded=bool(module.use_megatron_fsdp),
    )


def rank_fields(sizes: ParallelSizes) -> dict[str, int]:
    """Return the fields that are a question of ranks."""
    return {
        "tensor_parallel": int(sizes.tensor),
        "pipeline_parallel": int(sizes.pipeline),
        "context_parallel": int(sizes.context),
        "expert_parallel": int(sizes.expert),
        "data_parallel": int(sizes.data),
    }


def other_fields(sizes: ParallelSizes, layers: int | None) -> dict[str, Any]:
    """Return the fields that are none, those left out that are as where nothing is said.

    Args:
        sizes: of a module.
        layers: that it has; where the chunks of its pipeline do not divide them, embedding and loss
            count as layers (`mimokit.architecture.layer_split`).
    """
    chunks = int(sizes.pipeline) * int(sizes.virtual)
    uneven = layers is not None and layers % chunks != 0
    fields = {
        "virtual_pipeline_model_parallel_size": int(sizes.virtual) if sizes.virtual > 1 else None,
        "recompute_granularity": RECOMPUTE_NAMES[int(sizes.recompute)] if sizes.recompute else None,
        "num_distributed_optimizer_instances": int(sizes.instances)
        if sizes.instances > 1
        else None,
        "sequence_parallel": None if sizes.sequence_parallel else False,
        "use_distributed_optimizer": None if sizes.distributed_optimizer else False,
        "use_megatron_fsdp": True if sizes.fully_sharded else None,
        **(dict.fromkeys(_ENDS, True) if uneven else {}),
    }
    return {name: value for name, value in fields.items() if value is not None}
