"""Blocks of tensors from safetensors files or a layout's rank files; such files written."""

import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open

from mimokit.architecture.tensor_cut import Span
from mimokit.config.errors import ConfigError, Problem
from mimokit.planning.weights import Piece, WeightDirectory, read_directory
from mimokit.planning.weights.directory import ITEM_BYTES
from mimokit.planning.weights.layout_files import LAYOUT, UNPLANNED, ConvertedWeights, read_layout


class TensorSource(Protocol):
    """Where the tensors of weights are read from."""

    def block(self, tensor: str, rows: Span, columns: Span | None) -> torch.Tensor:
        """Return rows and columns of a tensor; None for all columns."""
        ...


class FileTensors:
    """The tensors of safetensors files. A block is a view of the memory map, not a copy."""

    def __init__(self, directory: Path, places: Mapping[str, str]) -> None:
        self._directory = directory
        self._places = places
        self._files: dict[str, Any] = {}

    def block(self, tensor: str, rows: Span, columns: Span | None) -> torch.Tensor:
        """Return rows and columns of a tensor; None for all columns."""
        name = self._places[tensor]
        if name not in self._files:
            self._files[name] = safe_open(self._directory / name, "pt")
        whole = self._files[name].get_slice(tensor)
        block: torch.Tensor
        if not whole.get_shape():  # a single number has no rows
            block = self._files[name].get_tensor(tensor)
        elif columns is None:
            block = whole[slice(*rows)]
        else:
            block = whole[slice(*rows), slice(*columns)]
        return block

    def close(self) -> None:
        """Give the memory maps back, once no block is in use."""
        self._files.clear()


Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""Name -> safetensors' dtype and the shape."""


def write_tensors(path: Path, shapes: Shapes, read: Callable[[str], torch.Tensor]) -> None:
    """Write a new safetensors file, each tensor as it is read, in the order of `shapes`."""
    header, reached = {}, 0
    for name, (dtype, shape) in shapes.items():
        size = math.prod(shape) * ITEM_BYTES[dtype]
        header[name] = {
            "dtype": dtype, "shape": list(shape), "data_offsets": [reached, reached + size]
        }  # fmt: skip
        reached += size
    content = {"__metadata__": {"format": "pt"}, **header}
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the data begin at a multiple of 8
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in shapes:
            file.write(read(name).contiguous().view(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())  # a full disk may be reported no earlier


def bytes_of_data(shapes: Shapes) -> int:
    """Return the bytes of the data."""
    return sum(math.prod(shape) * ITEM_BYTES[dtype] for dtype, shape in shapes.values())


@dataclass(frozen=True)
class Holder:
    """A rank that holds a region of a tensor, and where it lies in tensor and parameter."""

    rank: int
    parameter: str
    piece: Piece
    shape: tuple[int, ...]


class LayoutTensors:
    """Blocks of tensors from rank files.

    A region that several ranks hold is read from all of them and compared.
    """

    def __init__(self, layout: ConvertedWeights) -> None:
        self._tensors = layout.stored.tensors
        self._holders: dict[str, dict[tuple[Span, Span | None], list[Holder]]] = defaultdict(dict)
        for number, rank in enumerate(layout.plan.ranks):
            for name, parameter in rank.parameters.items():
                for piece in parameter.pieces:
                    region = (piece.rows, piece.columns)
                    holders = self._holders[piece.tensor].setdefault(region, [])
                    holders.append(Holder(number, name, piece, parameter.shape))
        directory = layout.stored.directory
        self._files = [
            FileTensors(directory, dict.fromkeys(rank.parameters, file))
            for rank, file in zip(layout.plan.ranks, layout.files, strict=True)
        ]
        self._unplanned = FileTensors(directory, dict.fromkeys(layout.unplanned, UNPLANNED))

    def block(self, tensor: str, rows: Span, columns: Span | None) -> torch.Tensor:
        """Return rows and columns of a tensor; `ConfigError` if ranks hold different values."""
        if tensor not in self._holders:
            return self._unplanned.block(tensor, rows, columns)
        parts = list(self._parts(tensor, rows, columns))
        _, _, first = parts[0]
        shape = list(self._tensors[tensor].shape)
        shape[0] = rows[1] - rows[0]
        if columns is not None:
            shape[1] = columns[1] - columns[0]
        if list(first.shape) == shape:
            return first
        whole = torch.empty(shape, dtype=first.dtype)
        for row, column, part in parts:
            place = whole[row : row + len(part)]
            if part.dim() == 2:
                place = place[:, column : column + part.shape[1]]
            place.copy_(part)
        return whole

    def close(self) -> None:
        """Give the memory maps back, once no block is in use."""
        for files in (*self._files, self._unplanned):
            files.close()

    def _parts(
        self, tensor: str, rows: Span, columns: Span | None
    ) -> Iterator[tuple[int, int, torch.Tensor]]:
        shape = self._tensors[tensor].shape
        width = (0, shape[1]) if len(shape) > 1 else (0, 1)
        wanted = columns or width
        for (held_rows, held_columns), holders in self._holders[tensor].items():
            present = held_columns or width
            tall, wide = _common(rows, held_rows), _common(wanted, present)
            if tall[0] < tall[1] and wide[0] < wide[1]:
                cut = None if wide == width else wide
                part = self._checked(holders, tall, cut)
                yield tall[0] - rows[0], wide[0] - wanted[0], part

    def _checked(self, holders: list[Holder], rows: Span, columns: Span | None) -> torch.Tensor:
        first, *others = holders
        region = self._read(first, rows, columns)
        for other in others:
            if not _same_bits(region, self._read(other, rows, columns)):
                names = dict.fromkeys((first.parameter, other.parameter))
                sentence = (
                    f"Parameter {' and '.join(names)}: ranks {first.rank} and {other.rank} hold "
                    "different values of what must be alike on both; train or convert it again."
                )
                problem = Problem("weights", first.parameter, other.rank, sentence)
                raise ConfigError([problem])
        return region

    def _read(self, holder: Holder, rows: Span, columns: Span | None) -> torch.Tensor:
        piece, files = holder.piece, self._files[holder.rank]
        shape = self._tensors[piece.tensor].shape
        if len(holder.shape) != len(shape):  # the same entries in the same order
            whole = files.block(holder.parameter, (0, holder.shape[0]), None)
            return whole.reshape(shape)[slice(*rows)]
        across = columns or piece.columns or ((0, shape[1]) if len(shape) > 1 else None)
        down = _moved(rows, piece.rows[0])
        if across is None:
            return files.block(holder.parameter, _moved(down, -piece.at[0]), None)
        across = _moved(across, (piece.columns or (0, 0))[0])
        if piece.transposed:
            down, across = across, down
        down, across = _moved(down, -piece.at[0]), _moved(across, -piece.at[1])
        if len(shape) > 2:
            return files.block(holder.parameter, down, None)
        block = files.block(holder.parameter, down, across)
        return block.T if piece.transposed else block


def _common(first: Span, second: Span) -> Span:
    return max(first[0], second[0]), min(first[1], second[1])


def _moved(span: Span, offset: int) -> Span:
    return span[0] - offset, span[1] - offset


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    return torch.equal(*(tensor.contiguous().view(torch.uint8) for tensor in (first, second)))


@contextmanager
def opened(directory: str | os.PathLike[str]) -> Iterator[tuple[WeightDirectory, TensorSource]]:
    """Yield a weights directory, of Hugging Face or converted, and what reads its tensors."""
    tensors: LayoutTensors | FileTensors
    if os.path.exists(Path(directory) / LAYOUT):
        layout = read_layout(directory)
        weights, tensors = layout.stored, LayoutTensors(layout)
    else:
        weights = read_directory(directory)
        places = {name: header.file for name, header in weights.tensors.items()}
        tensors = FileTensors(weights.directory, places)
    with closing(tensors):
        yield weights, tensors
