"""Parallel sizes of one module, and the fields of a config that state them.

Memory and time are written once, in terms that broadcast: a layout is one number per field, a
search is one array per field.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from mimokit.axes import CONFIG_FIELDS, RANK_AXES, SIZE_FIELDS, Axis, Choice
from mimokit.config import ModuleParallelismConfig
from mimokit.config.parallelism import LEFT_OUT
from mimokit.config.rules.facts import ModuleSizes, Numbers

__all__ = [
    "RECOMPUTE_FULL",
    "RECOMPUTE_NAMES",
    "RECOMPUTE_NONE",
    "RECOMPUTE_SELECTIVE",
    "Numbers",
    "ParallelSizes",
]

RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL = 0, 1, 2
RECOMPUTE_NAMES = ("none", "selective", "full")


@dataclass(frozen=True)
class ParallelSizes(ModuleSizes):
    """How one module is sharded: the sizes that rules read, and how its states are stored.

    Attributes:
        distributed_optimizer: optimizer state is sharded over data and context ranks (ZeRO 1).
        fully_sharded: weights and gradients too (FSDP, ZeRO 3).
        reduces_behind: gradients are reduced behind the last backward pass, also where the training
            stack would do so during it.
    """

    distributed_optimizer: Numbers = True
    fully_sharded: Numbers = False
    reduces_behind: Numbers = False

    def size(self, axis: Axis | Choice) -> Numbers:
        """Return the size along an axis, or the value of a choice."""
        value: Numbers = getattr(self, SIZE_FIELDS[axis])
        return value

    @property
    def expert_replicas(self) -> Numbers:
        """Ranks that store equal experts, or parts of them."""
        parts = self.expert * self.expert_tensor
        return np.maximum(1, self.tensor * self.context * self.data // parts)

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


_PLAIN = ParallelSizes()
_LEFT_OUT = ParallelSizes(
    sequence_parallel=LEFT_OUT["sequence_parallel"],
    distributed_optimizer=LEFT_OUT["use_distributed_optimizer"],
)
"""What a config has of which all fields are left out."""

_BEYOND_RANKS = (
    Axis.EXPERT_TENSOR,
    Axis.VIRTUAL_PIPELINE,
    Choice.RECOMPUTE,
    Choice.OPTIMIZER_INSTANCES,
    Choice.SEQUENCE_PARALLEL,
    Choice.DISTRIBUTED_OPTIMIZER,
    Choice.FULLY_SHARDED,
)

_ENDS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")


def sizes_of(module: ModuleParallelismConfig, replicas: int, micro_batch: Numbers) -> ParallelSizes:
    """Return the sizes that a config gives a module, as predictions take them.

    Args:
        replicas: its data_parallel, which the config may leave unset.
    """
    stated = {
        SIZE_FIELDS[choice]: module.in_runs(field) if field in LEFT_OUT else getattr(module, field)
        for choice, field in CONFIG_FIELDS.items()
    }
    stated["recompute"] = RECOMPUTE_NAMES.index(stated["recompute"])
    stated |= {"data": replicas, "micro_batch": micro_batch}
    return ParallelSizes(**stated, reduces_behind=module.overlap_grad_reduce is False)


def rank_fields(sizes: ParallelSizes) -> dict[str, int]:
    """Return the fields of a `ModuleParallelismConfig` that decide the number of ranks."""
    return {CONFIG_FIELDS[axis]: int(sizes.size(axis)) for axis in RANK_AXES}


def beyond_ranks(
    sizes: ParallelSizes, default: ParallelSizes = _PLAIN
) -> dict[Axis | Choice, int | str | bool]:
    """Return the choices that do not affect the number of ranks, those at their default left out.

    Recomputation goes by its name.
    """
    changed: dict[Axis | Choice, int | str | bool] = {}
    for choice in _BEYOND_RANKS:
        value, plain = sizes.size(choice), default.size(choice)
        if value != plain:
            changed[choice] = bool(value) if isinstance(plain, bool) else int(value)
    if Choice.RECOMPUTE in changed:
        changed[Choice.RECOMPUTE] = RECOMPUTE_NAMES[int(sizes.recompute)]
    return changed


def other_fields(sizes: ParallelSizes, layers: int | None) -> dict[str, Any]:
    """Return the other fields of a `ModuleParallelismConfig`, without those it need not state.

    Args:
        layers: of the module. Where the chunks of its pipeline do not divide them, embedding and
            loss count as layers (`mimokit.architecture.parameters_on_rank`).
    """
    stated = {
        CONFIG_FIELDS[choice]: value for choice, value in beyond_ranks(sizes, _LEFT_OUT).items()
    }
    uneven = layers is not None and layers % (int(sizes.pipeline) * int(sizes.virtual)) != 0
    return {**stated, **(dict.fromkeys(_ENDS, True) if uneven else {})}
