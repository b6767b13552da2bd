"""A Hugging Face directory: its config, and from the headers of its files which tensor lies where.

No tensor is read. A safetensors file is 8 bytes (length of the header, little-endian), the header
in JSON (name -> dtype, shape, data_offsets), and the data without holes, row-major.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mimokit.architecture.huggingface.qwen_vision_tensors import QWEN_VISION_TYPES
from mimokit.config.errors import ConfigError, Problem
from mimokit.config.text_file import open_regular, read_text_file, reason_of
from mimokit.units import listed, shown

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
    """Return the error that a file or directory of weights is rejected; a full stop is added."""
    return ConfigError([Problem("weights", field, value, f"{where}: {sentence}.")])


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file in the order of its data."""
    try:
        with open_regular(path, "rb") as file:
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
        "".join(header).encode()  # half a character in a name
    except (ValueError, TypeError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise refused(path, "header", shown(text[:40]), "its header is not a mapping in JSON")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        what = f"its __metadata__ is {shown(metadata)}, and must be a mapping from text to text"
        raise refused(path, "__metadata__", shown(metadata), what)
    spans = [_span(path, name, entry) for name, entry in header.items()]
    return _located(path, sorted(spans, key=lambda span: span[3:]), 8 + length, size)


def _span(path: Path, name: str, entry: Any) -> tuple[str, str, tuple[int, ...], int, int]:
    try:
        dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        is_dtype = dtype in ITEM_BYTES
        is_whole = all(type(number) is int and number >= 0 for number in (*shape, start, stop))
    except (TypeError, KeyError, ValueError):
        is_dtype = is_whole = False
    if not (is_dtype and is_whole):
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
    tensors, reached = {}, 0
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
        tensors[name] = StoredTensor(path.name, dtype, shape, data + start)
        reached = stop
    if data + reached != size:
        what = f"its header accounts for {data + reached:,} bytes, and it has {size:,}"
        raise refused(path, "header", size, what)
    return tensors


SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
"""Endings of files that run code when they are opened; they never are."""

MOST_NAME_BYTES = 255
"""Of a file, on the usual file systems."""

MOST_INDEX_CHARACTERS = 2**26
"""The index of a model of 700 billion parameters has 8 million."""


@dataclass(frozen=True)
class WeightDirectory:
    """What lies in a directory.

    Attributes:
        tensors: name -> where it lies, in the order of files and data.
    """

    directory: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def is_llava(self) -> bool:
        """Whether it has a language model next to a vision tower."""
        return self.config.get("model_type") == "llava"

    @property
    def is_multimodal(self) -> bool:
        """Whether it has the modules of a run, of which each reads its own tensors."""
        return self.is_llava or self.config.get("model_type") in QWEN_VISION_TYPES

    @property
    def has_no_files(self) -> bool:
        """Whether its tensors are those that config.json describes, and none is stored."""
        return all(tensor.file == CONFIG for tensor in self.tensors.values())

    def limited_to(self, names: Container[str]) -> WeightDirectory:
        """Return the same with the tensors of these names only."""
        tensors = {name: tensor for name, tensor in self.tensors.items() if name in names}
        return replace(self, tensors=tensors)


def read_directory(directory: str | os.PathLike[str]) -> WeightDirectory:
    """Return config and headers of a weights directory; no tensor is read.

    Raises:
        ConfigError: the directory, config or weights do not exist, or a file is damaged, or is a
            pickle.
    """
    path = Path(directory)
    if not os.path.isdir(path):
        what = "it is a file" if os.path.exists(path) else "it does not exist"
        raise refused(path, "path", str(path), f"{what}; give a weights directory")
    config = read_mapping(path / CONFIG)
    tensors: dict[str, StoredTensor] = {}
    for file in _files(path):
        for name, stored in read_header(file).items():
            if name in tensors:
                what = f"{shown(name)} lies in {tensors[name].file} and in {file.name}"
                raise refused(path, name, file.name, what)
            tensors[name] = stored
    return WeightDirectory(path, config, tensors)


def read_mapping(path: Path, most: int = 2**20) -> dict[str, Any]:
    """Return the mapping of a JSON file; raise `ConfigError` if it is something else."""
    try:
        content = json.loads(read_text_file(path, most))
    except (OSError, UnicodeDecodeError) as error:
        raise refused(path, "path", str(path), f"it cannot be read ({reason_of(error)})") from None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise refused(path, "content", shown(content), "it must be a mapping in JSON")
    return content


def _files(path: Path) -> Iterator[Path]:
    # As in `transformers`, a single file goes before an index.
    if (path / SINGLE).exists():
        yield path / SINGLE
    elif (path / INDEX).exists():
        yield from _indexed(path)
    else:
        raise _no_weights(path)


def is_file_name(name: str) -> bool:
    """Whether a file directly in a directory can have this name."""
    return Path(name).name == name and name.isprintable() and len(name.encode()) <= MOST_NAME_BYTES


def _no_weights(path: Path) -> Exception:
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in PICKLES)
    others = sorted(file.name for file in path.glob("*.safetensors"))
    if pickles:
        what = (
            f"its weights are in {shown(pickles[0])}, a pickle, which can run code and is not "
            f"opened; save them as {SINGLE}"
        )
    elif others:
        what = f"it has {listed(others[:3])}, but neither {SINGLE} nor {INDEX} to name them"
    else:
        what = f"it has no weights; put {SINGLE} or {INDEX} and its files there"
    return refused(path, "weights", pickles or others, what)


def _indexed(path: Path) -> Iterator[Path]:
    index = path / INDEX
    places = read_mapping(index, MOST_INDEX_CHARACTERS).get("weight_map")
    if not isinstance(places, dict) or not places:
        what = "it has no weight_map from tensors to files"
        raise refused(index, "weight_map", shown(places), what)
    for tensor, name in places.items():
        if not isinstance(name, str) or not is_file_name(name):
            what = f"it puts {shown(tensor)} into {shown(name)}; name a file of this directory"
            raise refused(index, tensor, shown(name), what)
        if Path(name).suffix in PICKLES or not name.endswith(".safetensors"):
            what = f"it names {shown(name)}, which is no .safetensors file and is not opened"
            raise refused(index, tensor, name, what)
    for name in sorted(set(places.values())):
        if not os.path.isfile(path / name):
            raise refused(index, name, name, f"it names {shown(name)}, which does not exist")
        yield path / name
