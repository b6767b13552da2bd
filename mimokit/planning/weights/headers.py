"""Headers of safetensors files: which tensor lies where, without reading a tensor.

A file is 8 bytes (length of the header, little-endian), the header in JSON (name -> dtype, shape,
data_offsets), and the data without holes, row-major.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimokit.config.errors import ConfigError, Problem
from mimokit.units import shown

MOST_HEADER_BYTES = 100_000_000
"""As the safetensors library has it."""

ITEM_BYTES: Mapping[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2,
    "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
"""Dtypes of safetensors and the bytes of one entry."""

FLOATING: Mapping[str, str] = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"
}  # fmt: skip
"""Dtypes that parameters may have, and torch's names of them."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        file: name of the file in the directory.
        dtype: safetensors' name.
        start: first byte in the file.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one entry of the first dimension."""
        return math.prod(self.shape[1:]) * ITEM_BYTES[self.dtype]

    @property
    def bytes(self) -> int:
        """Bytes of all of it."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def refused(where: object, field: str, value: object, sentence: str) -> ConfigError:
    """Return the error that a file of weights is rejected.

    Args:
        where: the file or directory; begins the sentence.
        sentence: the rest of the sentence, without the full stop.
    """
    return ConfigError([Problem("weights", field, value, f"{where}: {sentence}.")])


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file in the order of its data.

    Raises:
        ConfigError: it cannot be opened, or its header is not one of this file.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = struct.unpack("<Q", start)[0] if len(start := file.read(8)) == 8 else None
            if length is None or length > size - 8:
                stated = "" if length is None else f", and its first 8 state a header of {length:,}"
                what = f"it is truncated or no safetensors file: it has {size:,} bytes{stated}"
                raise refused(path, "header", length, what)
            if length > MOST_HEADER_BYTES:
                what = f"its header has {length:,} bytes; {MOST_HEADER_BYTES:,} are the most"
                raise refused(path, "header", length, what)
            text = file.read(length)
    except OSError as error:
        raise refused(path, "path", str(path), f"it cannot be read ({error.strerror})") from None
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise refused(path, "header", shown(text[:40]), "its header is not a mapping in JSON")
    header.pop("__metadata__", None)
    spans = [_span(path, name, entry) for name, entry in header.items()]
    return _located(path, sorted(spans, key=lambda span: span[3:]), 8 + length, size)


def _span(path: Path, name: str, entry: Any) -> tuple[str, str, tuple[int, ...], int, int]:
    """Return name, dtype, shape and offsets of an entry of a header."""
    try:
        dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        known = dtype in ITEM_BYTES
        whole = all(type(one) is int and one >= 0 for one in (*shape, start, stop))
    except (TypeError, KeyError, ValueError):
        known = whole = False
    if not (known and whole):
        what = (
            f"its header has no dtype, shape and data_offsets of {shown(name)} that can be read, "
            f"but {shown(entry)}"
        )
        raise refused(path, name, shown(entry), what)
    wanted = math.prod(shape) * ITEM_BYTES[dtype]
    if stop - start != wanted:
        what = (
            f"its header states offsets {start:,} to {stop:,} for {shown(name)}, but {dtype} of "
            f"shape {shape} has {wanted:,} bytes"
        )
        raise refused(path, name, [start, stop], what)
    return name, dtype, tuple(shape), start, stop


def _located(
    path: Path, spans: list[tuple[str, str, tuple[int, ...], int, int]], data: int, size: int
) -> dict[str, StoredTensor]:
    """Return the tensors, once their spans are found to follow one another to the file's end."""
    found, reached = {}, 0
    for name, dtype, shape, start, stop in spans:
        if start != reached:
            what = (
                f"its header states that {shown(name)} begins at byte {start:,} of the data, but "
                f"the tensor in front of it ends at {reached:,}"
            )
            raise refused(path, name, [start, stop], what)
        if data + stop > size:
            what = (
                f"it is truncated: {shown(name)} ends at byte {data + stop:,}, and the file has "
                f"{size:,}"
            )
            raise refused(path, name, [start, stop], what)
        found[name] = StoredTensor(path.name, dtype, shape, data + start)
        reached = stop
    if data + reached != size:
        what = f"its header accounts for {data + reached:,} bytes, and it has {size:,}"
        raise refused(path, "header", size, what)
    return found
