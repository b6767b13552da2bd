"""Converts weights into the files of a layout's ranks, between layouts, and back.

Every file is written tensor by tensor from slices of the others; the model is nowhere whole. The
new directory appears under its name when it is complete.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from mimokit.engine.weights.files import Shapes, TensorSource, bytes_of_data, opened, write_tensors
from mimokit.engine.weights.reading import read_parameter
from mimokit.planning.weights import PlannedParameter, RankWeights, WeightDirectory, plan_weights
from mimokit.planning.weights.directory import (
    FLOATING,
    INDEX,
    ITEM_BYTES,
    PICKLES,
    SINGLE,
    read_mapping,
    refused,
)
from mimokit.planning.weights.layout_files import (
    LAYOUT,
    UNPLANNED,
    ConvertedWeights,
    converted_layout,
    layout_to_json,
)
from mimokit.progress import shown
from mimokit.units import bytes_text

_STORED = {torch_name: name for name, torch_name in FLOATING.items()}
_NOT_COPIED = (*PICKLES, ".safetensors", ".h5", ".msgpack", ".onnx", ".gguf")


def convert_to_layout(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
) -> ConvertedWeights:
    """Write one safetensors file a rank, and layout.json.

    Args:
        source: a directory of Hugging Face, or one that this function has written.

    Raises:
        ConfigError: as `plan_weights`; the target exists or cannot be written; ranks of the source
            hold different values of what must be alike.
    """
    with opened(source) as (weights, tensors):
        plan = plan_weights(weights, tensor_parallel, pipeline_parallel)
        layout = converted_layout(weights, plan, _index_metadata(Path(source)))
        unplanned = _shapes(weights, layout.unplanned)
        needed = sum(rank.bytes for rank in plan.ranks) + bytes_of_data(unplanned)
        with (
            _new_directory(Path(target), needed) as folder,
            shown("Converting", total=len(plan.ranks)) as bar,
        ):
            for number, (rank, file) in enumerate(zip(plan.ranks, layout.files, strict=True)):
                bar.update(number, f"Writing {file}")
                write_rank_file(folder / file, rank, lambda _, p: read_parameter(p, tensors))
            if unplanned:
                _write_whole(folder / UNPLANNED, unplanned, tensors)
            _copy_others(weights.directory, folder)
            folder.joinpath(LAYOUT).write_text(json.dumps(layout_to_json(layout), indent=1))
    return layout


def convert_to_hf(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    max_shard_size: int | None = None,
) -> tuple[str, ...]:
    """Write a directory that Hugging Face reads: the same tensors bit for bit, config and index.

    The names of the files with tensors are returned.

    Args:
        source: a directory that `convert_to_layout` has written, or one of Hugging Face.
        max_shard_size: bytes of a file at most, except one with a single tensor; None: the files
            that the weights had.

    Raises:
        ConfigError: as `convert_to_layout`.
    """
    with opened(source) as (weights, tensors):
        return write_hf(weights, tensors, Path(target), max_shard_size)


def write_hf(
    weights: WeightDirectory, tensors: TensorSource, target: Path, max_shard_size: int | None = None
) -> tuple[str, ...]:
    """Write a directory that Hugging Face reads; see `convert_to_hf`."""
    files = _files(weights, max_shard_size)
    total = bytes_of_data(_shapes(weights, weights.tensors))
    with _new_directory(target, total) as folder, shown("Converting", total=len(files)) as bar:
        for number, (file, names) in enumerate(files.items()):
            bar.update(number, f"Writing {file}")
            _write_whole(folder / file, _shapes(weights, names), tensors)
        _copy_others(weights.directory, folder)
        if list(files) != [SINGLE]:
            metadata = {**_index_metadata(weights.directory), "total_size": total}
            places = {name: file for file, names in files.items() for name in names}
            index = {"metadata": metadata, "weight_map": dict(sorted(places.items()))}
            folder.joinpath(INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return tuple(files)


def write_rank_file(
    path: Path, rank: RankWeights, read: Callable[[str, PlannedParameter], torch.Tensor]
) -> None:
    """Write the parameters of a rank, the widest dtypes first, so that all are aligned."""
    shapes = {name: (_STORED[p.dtype], p.shape) for name, p in rank.parameters.items()}
    ordered = sorted(shapes.items(), key=lambda item: -ITEM_BYTES[item[1][0]])
    write_tensors(path, dict(ordered), lambda name: read(name, rank.parameters[name]))


def _write_whole(path: Path, shapes: Shapes, tensors: TensorSource) -> None:
    def read(name: str) -> torch.Tensor:
        _, shape = shapes[name]
        return tensors.block(name, (0, shape[0] if shape else 0), None)

    write_tensors(path, shapes, read)


def _shapes(weights: WeightDirectory, names: Iterable[str]) -> Shapes:
    stored = weights.tensors
    return {name: (stored[name].dtype, stored[name].shape) for name in names}


def _files(weights: WeightDirectory, most: int | None) -> dict[str, list[str]]:
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


def _index_metadata(source: Path) -> Mapping[str, Any]:
    for file, key in ((LAYOUT, "index_metadata"), (INDEX, "metadata")):
        if os.path.exists(source / file):
            metadata = read_mapping(source / file, 2**26).get(key)
            return metadata if isinstance(metadata, dict) else {}
    return {}


def _copy_others(source: Path, folder: Path) -> None:
    for file in sorted(source.iterdir()):
        if file.is_file() and file.name not in (LAYOUT, INDEX) and file.suffix not in _NOT_COPIED:
            shutil.copy(file, folder / file.name)


@contextmanager
def _new_directory(target: Path, needed: int) -> Iterator[Path]:
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
