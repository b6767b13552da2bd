"""The pieces of whole tensors in which strategies choose what they send.

SparseLoCo and DeMo choose the largest numbers of a chunk or block of what a rank holds, and a codec
has a scale per block, so their result depends on how tensor parallelism cuts tensors. One process
takes the same pieces: it cuts its whole tensors as the ranks of the layout do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from mimokit.architecture.tensor_cut import TensorShard
from mimokit.planning.strategies.sizes import chunk_lengths, demo_blocks

Shards = Mapping[str, Sequence[TensorShard]]
"""Tensor -> its different shards on the ranks of a layout."""

PADDING = -1
"""In place of a position: an entry of a piece that the whole tensor does not have."""


def positions_of(shard: TensorShard, whole: torch.Size) -> Tensor:
    """Return the positions in the flattened whole tensor of what a rank holds, in its shape."""
    positions = np.arange(whole.numel()).reshape(whole)
    return torch.from_numpy(shard.of(positions, PADDING))


def chunks_of(shard: Tensor, chunk: int) -> list[Tensor]:
    """Return the positions of each chunk of SparseLoCo: [entries]."""
    lengths = chunk_lengths(shard.numel(), chunk)
    return list(torch.split(shard.flatten(), lengths))


def block_rows(shard: Tensor, entries: int) -> Tensor:
    """Return the positions of each block of a codec: [blocks, entries], the last one padded."""
    missing = -shard.numel() % entries
    return torch.nn.functional.pad(shard.flatten(), (0, missing), value=PADDING).view(-1, entries)


def blocks_of(shard: Tensor, chunk: int) -> Iterator[Tensor]:
    """Yield the positions of each block of DeMo: [rows, columns], of a vector one row."""
    _, sides = demo_blocks(tuple(shard.shape), chunk)
    height, width = (1, *sides)[-2:]
    rows = 1 if shard.dim() < 2 else shard.shape[0]
    flat = shard.reshape(rows, -1)
    for row in range(0, flat.shape[0], height):
        for column in range(0, flat.shape[1], width):
            yield flat[row : row + height, column : column + width]


def cosine_transform(block: Tensor) -> Tensor:
    """Return the orthonormal DCT-II of a block along both sides."""
    return _cosines(block.shape[0]) @ block @ _cosines(block.shape[1]).T


def from_cosines(coefficients: Tensor) -> Tensor:
    """Return the block of which these are the transform."""
    return _cosines(coefficients.shape[0]).T @ coefficients @ _cosines(coefficients.shape[1])


@lru_cache(maxsize=64)
def _cosines(side: int) -> Tensor:
    rows = [
        [
            math.sqrt((2 if frequency else 1) / side)
            * math.cos(math.pi * frequency * (2 * place + 1) / (2 * side))
            for place in range(side)
        ]
        for frequency in range(side)
    ]
    return torch.tensor(rows)
