"""Writes weights as the files of Hugging Face, and the file of a rank, tensor by tensor.

A new directory appears under its name when it is complete.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from mimokit.engine.weights.files import Shapes, TensorSource, bytes_of_data, write_tensors
from mimokit.planning.weights import PlannedParameter, RankWeights, WeightDirectory
from mimokit.planning.weights.directory import (
    FLOATING,
    INDEX,
    ITEM_BYTES,
    PICKLES,
    SINGLE,
    read_mapping,
    refused,
)
from mimokit.planning.weights.layout_files import LAYOUT
from mimokit.units import bytes_text

_STORED = {torch_name: name for name, torch_name in FLOATING.items()}
_NOT_COPIED = (*PICKLES, ".safetensors", ".h5", ".msgpack", ".onnx", ".gguf")


def write_hf(
    weights: WeightDirectory,
    tensors: TensorSource,
    target: Path,
    files: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    """Write a directory that Hugging Face reads, and yield each file of tensors before it.

    Args:
        files: file -> its tensors; see `files_of`.
    """
    total = bytes_of_data(shapes_of(weights, weights.tensors))
    with new_directory(target, total) as folder:
        for file, names in files.items():
            yield file
            write_whole(folder / file, shapes_of(weights, names), tensors)
        copy_others(weights.directory, folder)
        if list(files) != [SINGLE]:
            metadata = {**index_metadata(weights.directory), "total_size": total}
            places = {name: file for file, names in files.items() for name in names}
            index = {"metadata": metadata, "weight_map": dict(sorted(places.items()))}
            folder.joinpath(INDEX).write_text(json.dumps(index, indent=2) + "\n")


def write_rank_file(
    path: Path, rank: RankWeights, read: Callable[[str, PlannedParameter], torch.Tensor]
) -> None:
    """Write the parameters of a rank, the widest dtypes first, so that all are aligned."""
    shapes = {name: (_STORED[p.dtype], p.shape) for name, p in rank.parameters.items()}
    ordered = sorted(shapes.items(), key=lambda item: -ITEM_BYTES[item[1][0]])
    write_tensors(path, dict(ordered), lambda name: read(name, rank.parameters[name]))


def write_whole(path: Path, shapes: Shapes, tensors: TensorSource) -> None:
    """Write whole tensors into a file."""

    def read(name: str) -> torch.Tensor:
        _, shape = shapes[name]
        return tensors.block(name, (0, shape[0] if shape else 0), None)

    write_tensors(path, shapes, read)


def shapes_of(weights: WeightDirectory, names: Iterable[str]) -> Shapes:
    """Return name -> dtype and shape of stored tensors."""
    stored = weights.tensors
    return {name: (stored[name].dtype, stored[name].shape) for name in names}


def files_of(weights: WeightDirectory, most: int | None = None) -> dict[str, list[str]]:
    """Return file -> tensors: as they are stored, or of so many bytes at most."""
    if most is None:
        files: dict[str, list[str]] = {}
        for name, tensor in weights.tensors.items():
            files.setdefault(tensor.file, []).append(name)
        return files
    groups: list[list[str]] = [[]]
    size = 0
    for name, tensor in weights.tensors.items():
        if groups[-1] and size + tensor.bytes > most:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += tensor.bytes
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    return {
        f"model-{number:05}-of-{len(groups):05}.safetensors": names
        for number, names in enumerate(groups, 1)
    }


def index_metadata(source: Path) -> Mapping[str, Any]:
    """Return what the index of a directory says besides; empty without one."""
    for file, key in ((LAYOUT, "index_metadata"), (INDEX, "metadata")):
        if os.path.exists(source / file):
            metadata = read_mapping(source / file, 2**26).get(key)
            return metadata if isinstance(metadata, dict) else {}
    return {}


def copy_others(source: Path, folder: Path) -> None:
    """Copy what a directory has besides weights."""
    for file in sorted(source.iterdir()):
        if file.is_file() and file.name not in (LAYOUT, INDEX) and file.suffix not in _NOT_COPIED:
            shutil.copy(file, folder / file.name)


@contextmanager
def new_directory(target: Path, needed: int) -> Iterator[Path]:
    """Yield a directory that gets the name of the target when the block ends without an error."""
    target = target.absolute()
    if os.path.lexists(target):
        raise refused(target, "path", str(target), "it exists; name a new directory")
    folder = target.with_name(f".{target.name}.incomplete-{os.getpid()}")
    try:
        folder.mkdir(parents=True)
        free = shutil.disk_usage(folder).free
        if free < needed:
            what = f"{bytes_text(needed)} are needed, and the disk has {bytes_text(free)} left"
            raise refused(target, "disk", free, what)
        yield folder
        folder.rename(target)
    except OSError as error:
        why = error.strerror or str(error)
        raise refused(target, "path", str(target), f"it cannot be written ({why})") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
