"""A directory with a Hugging Face checkpoint: its config and the headers of its files."""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mimokit.config.text_file import read_text_file, reason_of
from mimokit.planning.weights.headers import StoredTensor, read_header, refused
from mimokit.units import listed, shown

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
"""Endings of files that run code when they are opened; they never are."""

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

    def limited_to(self, names: Container[str]) -> WeightDirectory:
        """Return the same with those of its tensors alone that have these names."""
        kept = {name: one for name, one in self.tensors.items() if name in names}
        return replace(self, tensors=kept)


def read_directory(directory: str | os.PathLike[str]) -> WeightDirectory:
    """Return config and headers of a checkpoint; no tensor is read.

    Raises:
        ConfigError: the directory, config or weights do not exist, or a file is damaged, or is a
            pickle.
    """
    path = Path(directory)
    if not path.is_dir():
        what = "it is a file" if path.exists() else "it does not exist"
        raise refused(path, "path", str(path), f"{what}; give the directory of a checkpoint")
    config = read_json(path / CONFIG)
    tensors: dict[str, StoredTensor] = {}
    for file in _files(path):
        for name, stored in read_header(file).items():
            if name in tensors:
                what = f"{shown(name)} lies in {tensors[name].file} and in {file.name}"
                raise refused(path, name, file.name, what)
            tensors[name] = stored
    return WeightDirectory(path, config, tensors)


def read_json(path: Path, most: int = 2**20) -> dict[str, Any]:
    """Return the content of a JSON file that must be a mapping.

    Raises:
        ConfigError: it cannot be read, or is something else.
    """
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
    """Yield the files with weights, in the order of their names.

    As in `transformers`, a single file goes before an index.
    """
    if (path / SINGLE).exists():
        yield path / SINGLE
    elif (path / INDEX).exists():
        yield from _indexed(path)
    else:
        raise _no_weights(path)


def _no_weights(path: Path) -> Exception:
    pickles = sorted(one.name for one in path.iterdir() if one.suffix in PICKLES)
    others = sorted(one.name for one in path.glob("*.safetensors"))
    if pickles:
        what = (
            f"its weights are in {shown(pickles[0])}, a pickle, which can run code and is not "
            f"opened; save them as {SINGLE}"
        )
    elif others:
        what = (
            f"it has {listed(others[:3])}, but neither {SINGLE} nor {INDEX}, which must name them"
        )
    else:
        what = f"it has no weights; put {SINGLE} or {INDEX} and its files there"
    return refused(path, "weights", pickles or others, what)


def _indexed(path: Path) -> Iterator[Path]:
    """Yield the files that an index names, once all its entries are found right."""
    index = path / INDEX
    places = read_json(index, MOST_INDEX_CHARACTERS).get("weight_map")
    if not isinstance(places, dict) or not places:
        what = "it has no weight_map from tensors to files"
        raise refused(index, "weight_map", shown(places), what)
    for tensor, name in places.items():
        if not isinstance(name, str) or Path(name).name != name:
            what = f"it puts {shown(tensor)} into {shown(name)}; name a file of this directory"
            raise refused(index, tensor, shown(name), what)
        if Path(name).suffix in PICKLES or not name.endswith(".safetensors"):
            what = f"it names {shown(name)}, which is no .safetensors file and is not opened"
            raise refused(index, tensor, name, what)
    for name in sorted(set(places.values())):
        if not (path / name).is_file():
            raise refused(index, name, name, f"it names {shown(name)}, which does not exist")
        yield path / name
