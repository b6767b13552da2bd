"""Fills parameters of a rank from the files of weights: with the planned bytes and no others."""

import math
from collections.abc import Mapping

import torch

from mimokit.config.errors import ConfigError, Problem
from mimokit.engine.weights.files import TensorSource
from mimokit.planning.weights import Piece, PlannedParameter, RankWeights


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
