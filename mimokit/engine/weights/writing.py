"""Writes safetensors files tensor by tensor; no more than one tensor is in memory."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from mimokit.planning.weights.headers import ITEM_BYTES

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
