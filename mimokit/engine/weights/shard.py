"""Reads the shard of one rank from the files of weights."""

import os

import torch

from mimokit.config.errors import ConfigError, Problem
from mimokit.engine.weights.files import TensorSource, opened
from mimokit.engine.weights.reading import fill_parameter
from mimokit.planning.weights import PlannedParameter, WeightPlanner


def read_shard(
    directory: str | os.PathLike[str],
    *,
    tensor_parallel: int = 1,
    tensor_rank: int = 0,
    pipeline_parallel: int = 1,
    pipeline_rank: int = 0,
    dtype: torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """Return the parameters of one rank, by Megatron's names. Needs no process group.

    Private memory grows by the shard only: every planned block is copied from the memory map of
    the file into the parameter.

    Args:
        directory: with config.json and safetensors files of Hugging Face, or one that
            `mimokit convert` has written for any layout.
        dtype: of the parameters; None: as in the files.

    Raises:
        ConfigError: as `plan_weights`; a rank that the layout does not have; ranks that hold
            different values of one entry (in a converted directory).
    """
    _check_rank("tensor", tensor_rank, tensor_parallel)
    _check_rank("pipeline", pipeline_rank, pipeline_parallel)
    named = None if dtype is None else str(dtype).removeprefix("torch.")
    with opened(directory) as (weights, source):
        planner = WeightPlanner(weights, tensor_parallel, pipeline_parallel, named)
        planned = planner.rank(planner.grid.rank(tp=tensor_rank, pp=pipeline_rank))
        return {name: read_parameter(shard, source) for name, shard in planned.parameters.items()}


def _check_rank(axis: str, rank: int, size: int) -> None:
    if not 0 <= rank < max(size, 1):
        sentence = (
            f"Layout: {axis}_rank is {rank}, and {axis}_parallel is {size}; "
            f"ranks are counted from 0 to {size - 1}."
        )
        raise ConfigError([Problem("weights", f"{axis}_rank", rank, sentence)])


def read_parameter(planned: PlannedParameter, source: TensorSource) -> torch.Tensor:
    """Return a new parameter of a rank."""
    target = torch.empty(planned.shape, dtype=getattr(torch, planned.dtype))
    fill_parameter(target, planned, source)
    return target
