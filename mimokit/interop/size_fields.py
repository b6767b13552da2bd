"""The fields of a config that state parallel sizes, as written for others."""

from typing import Any

from mimokit.axes import CONFIG_FIELDS, RANK_AXES, Axis, Choice
from mimokit.config.parallelism import LEFT_OUT
from mimokit.config.sizes import RECOMPUTE_NAMES, ParallelSizes

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
            loss count as layers (`mimokit.architecture.layers_on_stage`).
    """
    stated = {
        CONFIG_FIELDS[choice]: value for choice, value in beyond_ranks(sizes, _LEFT_OUT).items()
    }
    uneven = layers is not None and layers % (int(sizes.pipeline) * int(sizes.virtual)) != 0
    return {**stated, **(dict.fromkeys(_ENDS, True) if uneven else {})}
