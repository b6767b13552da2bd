"""The blocks that a rank holds of whole tensors, as torch's checkpoints take them.

A tensor of state is one of the whole module, whatever the layout. What a rank holds of it is some
rectangles, by the cut table; under ZeRO-1 those of a range of the flattened shard.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

from mimokit.architecture.tensor_cut import Shape, Span, TensorShard


@dataclass(frozen=True)
class TensorBlock:
    """A rectangle of a whole tensor; `tensor` is a view of the memory that has it."""

    offsets: Shape
    tensor: torch.Tensor


def blocks_of(
    values: torch.Tensor, shard: TensorShard, entries: Span | None
) -> tuple[TensorBlock, ...]:
    """Return the blocks of a whole tensor that a rank holds.

    Args:
        values: shard [its shape], or of some entries of the flattened shard [stop - start].
        entries: which; None: all.
    """
    shape = shard.shape or (1,)
    parts = ranges = [((0,) * len(shape), shape)]
    if entries is not None:
        ranges = list(rectangles_of(shape, *entries))
        flat = torch.split(values, [math.prod(lengths) for _, lengths in ranges])
        parts = ranges
        views = [part.view(lengths) for part, (_, lengths) in zip(flat, parts, strict=True)]
    else:
        views = [values.view(shape)]
    wholes = [(block.whole, block.local, block.shape) for block in shard.rectangles]
    if not shard.cut.whole:
        wholes = [((0,), (0,), (1,))]
    return tuple(
        block
        for view, (first, lengths) in zip(views, parts, strict=True)
        for whole, local, size in wholes
        for block in _common(view, first, lengths, whole, local, size)
    )


def _common(
    view: torch.Tensor, first: Shape, lengths: Shape, whole: Shape, local: Shape, size: Shape
) -> Iterator[TensorBlock]:
    """Yield what a part of a shard and a rectangle of it, which starts at `local`, share."""
    starts = [max(a, b) for a, b in zip(first, local, strict=True)]
    stops = [min(a + n, b + m) for a, n, b, m in zip(first, lengths, local, size, strict=True)]
    if any(start >= stop for start, stop in zip(starts, stops, strict=True)):
        return
    inside = tuple(
        slice(start - a, stop - a) for start, stop, a in zip(starts, stops, first, strict=True)
    )
    offsets = tuple(a + start - b for a, start, b in zip(whole, starts, local, strict=True))
    yield TensorBlock(offsets, view[inside])


def rectangles_of(shape: Shape, start: int, stop: int) -> Iterator[tuple[Shape, Shape]]:
    """Yield offsets and lengths of the rectangles that are entries [start, stop) of a tensor.

    They are in the order of the entries; each is contiguous.
    """
    if start >= stop:
        return
    if len(shape) == 1:
        yield (start,), (stop - start,)
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row
    if first > last:
        yield from _in_row(shape, last, start - last * row, stop - last * row)
        return
    if start < first * row:
        yield from _in_row(shape, first - 1, start - (first - 1) * row, row)
    if first < last:
        yield (first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:])
    yield from _in_row(shape, last, 0, stop - last * row)


def _in_row(shape: Shape, row: int, start: int, stop: int) -> Iterator[tuple[Shape, Shape]]:
    for offsets, lengths in rectangles_of(shape[1:], start, stop):
        yield (row, *offsets), (1, *lengths)


class BlockTensor(torch.Tensor):
    """A whole tensor of which this rank has blocks, by the protocol of torch's checkpoints.

    It has the shape of the whole and no memory; nothing can be computed with it.
    """

    blocks: tuple[TensorBlock, ...]

    @staticmethod
    def __new__(cls: type[BlockTensor], whole: Shape, blocks: Sequence[TensorBlock]) -> BlockTensor:
        """Return the tensor; `blocks` has at least one."""
        dtype = blocks[0].tensor.dtype
        made: BlockTensor = torch.Tensor._make_wrapper_subclass(
            cls, torch.Size(whole), dtype=dtype, device=torch.device("cpu")
        )
        made.blocks = tuple(blocks)
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        raise TypeError(f"{func} of a tensor of which there are blocks only")

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [
            ChunkStorageMetadata(torch.Size(block.offsets), block.tensor.size())
            for block in self.blocks
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        assert index.offset is not None
        wanted = tuple(index.offset)
        return next(block.tensor for block in self.blocks if block.offsets == wanted)
