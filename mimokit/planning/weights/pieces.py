"""The shard of one parameter: its shape on a rank, and the blocks of the files it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mimokit.architecture.huggingface.checkpoint_tensors import Cut, WholeParameter
from mimokit.architecture.modules import padded_vocabulary
from mimokit.planning.weights.headers import StoredTensor
from mimokit.planning.weights.types import Piece, Span


def shard(
    parameter: WholeParameter,
    tensors: Mapping[str, StoredTensor],
    tensor_parallel: int,
    rank: int,
    vocab_multiple: int = 1,
) -> tuple[tuple[int, ...], tuple[Piece, ...]]:
    """Return the shape of a parameter on a rank, and its pieces.

    Args:
        parameter: of the whole model.
        tensors: where its tensors lie.
        tensor_parallel: ranks that share it.
        rank: one of them.
        vocab_multiple: a vocabulary is padded to a multiple of this times tensor_parallel.
    """
    height, *rest = parameter.shape
    spans: list[Span] = [(0, height)]
    columns: Span | None = None
    if parameter.cut is Cut.ROWS:
        spans = list(_rows(parameter, tensor_parallel, rank, vocab_multiple))
        height = sum(stop - start for start, stop in spans)
    elif parameter.cut is Cut.COLUMNS:
        width = rest[0] // tensor_parallel
        columns, rest = (rank * width, (rank + 1) * width), [width]
    whole = parameter.cut is Cut.NONE
    pieces = tuple(
        Piece(tensors[tensor].file, tensor, *_block(parameter, rows, columns), at=(at, 0))
        for tensor, rows, at in ([_all_of(parameter)] if whole else _taken(parameter, spans))
    )
    return (height, *rest), pieces


def _all_of(parameter: WholeParameter) -> tuple[str, Span, int]:
    """Return the one tensor of a parameter that is not cut; its shape may differ in the file."""
    (source,) = parameter.sources
    return source.tensor, (source.start, source.stop), 0


def _rows(
    parameter: WholeParameter, tensor_parallel: int, rank: int, vocab_multiple: int
) -> Iterator[Span]:
    """Yield the rows of the whole parameter that a rank has: of every part its share."""
    height = parameter.shape[0]
    if parameter.padded:
        height = int(padded_vocabulary(height, vocab_multiple, tensor_parallel))
    part = height // parameter.parts
    share = part // tensor_parallel
    for number in range(parameter.parts):
        start = number * part + rank * share
        yield start, start + share


def _taken(parameter: WholeParameter, spans: list[Span]) -> Iterator[tuple[str, Span, int]]:
    """Yield tensor, rows of it, and the row of the shard where these begin."""
    shard_row = 0
    for start, stop in spans:
        whole_row = 0
        for source in parameter.sources:
            length = source.stop - source.start
            first, last = max(start, whole_row), min(stop, whole_row + length)
            if first < last:
                offset = source.start - whole_row
                yield source.tensor, (first + offset, last + offset), shard_row + first - start
            whole_row += length
        shard_row += stop - start


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
    return columns or (0, parameter.shape[1]), across, True
