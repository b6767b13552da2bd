"""The shard of one parameter: its shape on a rank, and the blocks of the files it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mimokit.architecture.huggingface.weight_tensors import WholeParameter
from mimokit.architecture.tensor_cut import Shape, ShardPlace, Span, TensorShard
from mimokit.planning.weights.headers import StoredTensor
from mimokit.planning.weights.types import Piece


def shard(
    parameter: WholeParameter, tensors: Mapping[str, StoredTensor], place: ShardPlace
) -> tuple[Shape, tuple[Piece, ...]]:
    """Return the shape of a parameter on a rank, and its pieces."""
    held = parameter.row.cut.at(place)
    return held.shape, tuple(
        Piece(tensors[tensor].file, tensor, *_block(parameter, rows, columns), at=(at, 0))
        for tensor, rows, columns, at in _blocks(parameter, held)
    )


def _blocks(
    parameter: WholeParameter, held: TensorShard
) -> Iterator[tuple[str, Span, Span | None, int]]:
    """Yield tensor, rows and columns of it, and the row of the shard where these begin."""
    if held.cut.dimension is None:  # all of one tensor, whose shape may differ in the file
        (source,) = parameter.sources
        yield source.tensor, (source.start, source.stop), None, 0
        return
    for rectangle in held.rectangles:
        start, stop = rectangle.whole[0], rectangle.whole[0] + rectangle.shape[0]
        columns: Span | None = None
        if held.cut.dimension == 1:
            columns = rectangle.whole[1], rectangle.whole[1] + rectangle.shape[1]
        row = 0
        for source in parameter.sources:
            length = source.stop - source.start
            first, last = max(start, row), min(stop, row + length)
            if first < last:
                rows = first - row + source.start, last - row + source.start
                yield source.tensor, rows, columns, rectangle.local[0] + first - start
            row += length


def _block(
    parameter: WholeParameter, rows: Span, columns: Span | None
) -> tuple[Span, Span | None, bool]:
    """Return rows and columns of a block as they are counted in the file, and if it is transposed.

    Columns are None where they are all of the tensor's.
    """
    if not parameter.transposed:
        return rows, columns, False
    held = sum(source.stop - source.start for source in parameter.sources)
    across = None if rows == (0, held) and len(parameter.sources) == 1 else rows
    return columns or (0, parameter.row.cut.whole[1]), across, True
