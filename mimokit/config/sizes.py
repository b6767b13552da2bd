"""Parallel sizes of one module.

Rules, memory and time are written once, in terms that broadcast: a layout is one number per field,
a search is one array per field.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimokit.axes import CONFIG_FIELDS, SIZE_FIELDS, Axis, Choice
from mimokit.config.parallelism import LEFT_OUT, ModuleParallelismConfig

Numbers = float | NDArray[Any]
"""A number, or an array of numbers that broadcasts against the others.

The elements of an array are int64 (sizes), bool (flags) or float64 (bytes, seconds).
"""

RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL = 0, 1, 2
RECOMPUTE_NAMES = ("none", "selective", "full")


@dataclass(frozen=True)
class ParallelSizes:
    """How one module is sharded, and how its states are stored.

    Attributes:
        tensor: ranks that share each layer (t).
        pipeline: stages (p).
        virtual: chunks of layers per stage (v); 1 for plain 1F1B.
        context: ranks that share each sequence (c).
        expert: ranks that share the experts (e), among the tensor x context x data ranks.
        data: replicas (d).
        micro_batch: samples per replica and micro-batch (b).
        recompute: 0 none, 1 the attention core, 2 whole layers.
        instances: replicas of the distributed optimizer's shards (optimizer instances).
        sequence_parallel: what tensor parallelism leaves whole is cut along the sequence.
        expert_tensor: ranks over which one expert is cut, among those ranks, too.
        distributed_optimizer: optimizer state is sharded over data and context ranks (ZeRO 1).
        fully_sharded: weights and gradients too (FSDP, ZeRO 3).
        reduces_behind: gradients are reduced behind the last backward pass, also where the training
            stack would do so during it.
        logits_as_layers: layers that the logits count as where a training stack deals layers to
            stages by their products; 0: stages hold equally many, as Megatron's do.
    """

    tensor: Numbers = 1
    pipeline: Numbers = 1
    virtual: Numbers = 1
    context: Numbers = 1
    expert: Numbers = 1
    data: Numbers = 1
    micro_batch: Numbers = 1
    recompute: Numbers = 0
    instances: Numbers = 1
    sequence_parallel: Numbers = True
    distributed_optimizer: Numbers = True
    fully_sharded: Numbers = False
    reduces_behind: Numbers = False
    logits_as_layers: Numbers = 0.0
    expert_tensor: Numbers = field(default=1, kw_only=True)

    @property
    def ranks(self) -> Numbers:
        """Ranks of the module."""
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def ranks_per_replica(self) -> Numbers:
        """Ranks of one data-parallel replica, all its pipeline stages together."""
        return self.tensor * self.pipeline * self.context

    @property
    def ranks_per_stage(self) -> Numbers:
        """Ranks of one pipeline stage, all its replicas together."""
        return self.tensor * self.context * self.data

    @property
    def replicas(self) -> Numbers:
        """Ranks that hold equal weights outside the experts: data x context."""
        return self.data * self.context

    @property
    def chunks(self) -> Numbers:
        """Chunks of layers over all stages."""
        return self.pipeline * self.virtual

    def layers_per_chunk(self, layers: int, extra: int = 0) -> tuple[Numbers, Numbers]:
        """Return the layers of a chunk, and by how many the first one has fewer: 0 or 1.

        Where the chunks do not divide the layers, embedding and loss count as layers (Megatron's
        `account_for_embedding_in_pipeline_split` and `..._loss_...`), so that the first and last
        chunk are shorter, and the chunks in between are rounded up; so do `extra` layers of the
        last chunk that predict tokens further on.
        """
        embedding = (layers % self.chunks != 0) * 1
        return -(-(layers + embedding * (2 + extra)) // self.chunks), embedding

    def size(self, axis: Axis | Choice) -> Numbers:
        """Return the size along an axis, or the value of a choice."""
        value: Numbers = getattr(self, SIZE_FIELDS[axis])
        return value

    @property
    def expert_replicas(self) -> Numbers:
        """Ranks that store equal experts, or parts of them."""
        parts = self.expert * self.expert_tensor
        return np.maximum(1, self.ranks_per_stage // parts)

    @property
    def in_first_stage(self) -> ParallelSizes:
        """Those of a module that lies whole in the first of these stages."""
        return replace(self, pipeline=1, virtual=1, expert=1, expert_tensor=1)

    @property
    def of_whole_items(self) -> ParallelSizes:
        """Those with which each context-parallel rank computes all items of its replica."""
        return replace(self, context=1, data=self.data * self.context)

    @property
    def sequence_shards(self) -> Numbers:
        """Shards along the sequence of what tensor parallelism does not shard."""
        return np.where(self.sequence_parallel, self.tensor, 1)

    def take(self, index: Any) -> ParallelSizes:
        """Return the candidates at an index or a mask; scalars stay as they are."""
        chosen = {
            field.name: value[index]
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), np.ndarray) and value.ndim
        }
        return replace(self, **chosen)


def sizes_of(module: ModuleParallelismConfig, replicas: int, micro_batch: Numbers) -> ParallelSizes:
    """Return the sizes that a config gives a module, as predictions take them."""
    stated = {
        SIZE_FIELDS[choice]: module.in_runs(field) if field in LEFT_OUT else getattr(module, field)
        for choice, field in CONFIG_FIELDS.items()
    }
    stated["recompute"] = RECOMPUTE_NAMES.index(stated["recompute"])
    stated |= {"data": replicas, "micro_batch": micro_batch}
    return ParallelSizes(**stated, reduces_behind=module.overlap_grad_reduce is False)
