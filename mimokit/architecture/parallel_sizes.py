"""Parallel sizes of one module as numbers or as arrays of candidates.

Memory and time are written once, in terms that broadcast: a layout is one number per field, a
search is one array per field.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = float | NDArray[Any]
"""A number, or an array of numbers that broadcasts against the others.

The elements of an array are int64 (sizes), bool (flags) or float64 (bytes, seconds).
"""

RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL = 0, 1, 2
RECOMPUTE_NAMES = ("none", "selective", "full")


@dataclass(frozen=True)
class ParallelSizes:
    """How one module is cut.

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
        distributed_optimizer: optimizer state is cut over data and context ranks (ZeRO 1).
        fully_sharded: weights and gradients too (FSDP, ZeRO 3).
    """

    tensor: Numbers = 1
    pipeline: Numbers = 1
    virtual: Numbers = 1
    context: Numbers = 1
    expert: Numbers = 1
    data: Numbers = 1
    micro_batch: Numbers = 1
    recompute: Numbers = RECOMPUTE_NONE
    instances: Numbers = 1
    sequence_parallel: Numbers = True
    distributed_optimizer: Numbers = True
    fully_sharded: Numbers = False

    @property
    def ranks(self) -> Numbers:
        """Ranks of the module."""
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def replicas(self) -> Numbers:
        """Ranks that hold equal weights outside the experts: data x context."""
        return self.data * self.context

    @property
    def expert_replicas(self) -> Numbers:
        """Ranks that hold equal experts; expert tensor parallelism is not used."""
        return np.maximum(1, self.tensor * self.context * self.data // self.expert)

    @property
    def sequence_shards(self) -> Numbers:
        """How many ways sequence parallelism cuts what tensor parallelism leaves whole."""
        return np.where(self.sequence_parallel, self.tensor, 1)

    def take(self, index: Any) -> ParallelSizes:
        """Return the candidates at an index or mask; single numbers stay."""
        chosen = {
            field.name: value[index]
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), np.ndarray) and value.ndim
        }
        return replace(self, **chosen)
