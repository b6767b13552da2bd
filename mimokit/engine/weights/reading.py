"""Reads the shard of one rank from the files of weights: the planned bytes and no others."""

import math
import os
from collections.abc import Mapping

import torch

from mimokit.config.errors import ConfigError, Problem
from mimokit.engine.weights.files import TensorSource, opened
from mimokit.planning.weights import Piece, PlannedParameter, RankWeights, WeightPlanner


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


def fill(
    parameters: Mapping[str, torch.Tensor], planned: RankWeights, source: TensorSource
) -> None:
    """Fill the parameters of a module on this rank in place, on any device and of any dtype.

    Raises:
        ConfigError: the module has other parameters, or one of another shape.
    """
    wanted, present = set(planned.parameters), set(parameters)
    if wanted != present:
        name = min(wanted ^ present)
        if name in wanted:
            raise _other_module(name, "the weights have it, the module does not")
        raise _other_module(name, "the module has it, the weights do not")
    for name, shard in planned.parameters.items():
        target = parameters[name]
        if tuple(target.shape) != shard.shape:
            shapes = f"{list(target.shape)} in the module, {list(shard.shape)} in the weights"
            raise _other_module(name, f"its shape is {shapes}")
        fill_parameter(target, shard, source)


def _other_module(name: str, what: str) -> ConfigError:
    sentence = f"Parameter {name}: {what}; give the weights of this network."
    return ConfigError([Problem("weights", name, None, sentence)])


@torch.no_grad()
def fill_parameter(target: torch.Tensor, planned: PlannedParameter, source: TensorSource) -> None:
    """Copy the blocks of one parameter to their places; the rest of it becomes zero."""
    pieces = planned.pieces
    copied = sum(_copy(target, piece, source) for piece in pieces)
    if copied < math.prod(planned.shape):  # padding lies behind all pieces
        rows = max((piece.at[0] + piece.rows[1] - piece.rows[0] for piece in pieces), default=0)
        target[rows:] = 0


def _copy(target: torch.Tensor, piece: Piece, source: TensorSource) -> int:
    block = source.block(piece.tensor, piece.rows, piece.columns)
    if piece.transposed:
        block = block.T
    if block.dim() == target.dim():
        place = target[piece.at[0] : piece.at[0] + len(block)]
        if target.dim() > 1:
            place = place[:, piece.at[1] : piece.at[1] + block.shape[1]]
        place.copy_(block)
    else:  # the same entries in the same order: a class token, a patch embedding
        target.view(-1).copy_(block.reshape(-1))
    return block.numel()
