"""Blocks of tensors from safetensors files, and such files written tensor by tensor."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open

from mimokit.architecture.tensor_cut import Span
from mimokit.planning.weights.directory import ITEM_BYTES


class TensorSource(Protocol):
    """Where the tensors of a checkpoint are read from."""

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
        taken = self._files[name].get_slice(tensor)
        if not taken.get_shape():  # a single number has no rows
            single: torch.Tensor = self._files[name].get_tensor(tensor)
            return single
        block: torch.Tensor = (
            taken[slice(*rows)] if columns is None else taken[slice(*rows), slice(*columns)]
        )
        return block

    def close(self) -> None:
        """Give the memory maps back, once no block is in use."""
        self._files.clear()


Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""Name -> safetensors' dtype and the shape."""


def write_tensors(path: Path, shapes: Shapes, read: Callable[[str], torch.Tensor]) -> None:
    """Write a new safetensors file.

    Args:
        path: of the file; it must not exist.
        shapes: of the tensors, in the order of their data.
        read: name -> tensor, called once for each when its turn has come.

    Raises:
        OSError: the file cannot be written, for a full disk say.
    """
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
            file.write(_bytes_of(read(name)))
        file.flush()
        os.fsync(file.fileno())  # a full disk may be reported no earlier


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    data: memoryview = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
    return data


def total_bytes(shapes: Shapes) -> int:
    """Return the bytes of the data."""
    return sum(math.prod(shape) * ITEM_BYTES[dtype] for dtype, shape in shapes.values())
