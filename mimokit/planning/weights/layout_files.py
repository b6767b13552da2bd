"""A directory with one safetensors file a rank, and the layout.json that says what they are."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimokit.planning.weights.directory import (
    CONFIG,
    FLOATING,
    ITEM_BYTES,
    StoredTensor,
    WeightDirectory,
    is_file_name,
    read_directory,
    read_header,
    read_mapping,
    refused,
)
from mimokit.planning.weights.plan import WeightPlanner
from mimokit.planning.weights.types import PlannedParameter, WeightPlan
from mimokit.units import shown

LAYOUT = "layout.json"
UNPLANNED = "unplanned.safetensors"
"""Tensors of the Hugging Face files that are no parameters of the planned model."""

FORMAT = 1
MOST_CHARACTERS = 2**26


def rank_file(number: int) -> str:
    """Return the name of a rank's file."""
    return f"rank_{number:05}.safetensors"


@dataclass(frozen=True)
class ConvertedWeights:
    """What lies in a converted directory.

    Attributes:
        stored: the tensors as they were in the files of Hugging Face.
        unplanned: tensors that no rank holds.
        index_metadata: of the index of the Hugging Face files, if they had one.
    """

    stored: WeightDirectory
    plan: WeightPlan
    files: tuple[str, ...]
    unplanned: tuple[str, ...]
    index_metadata: Mapping[str, Any]


def converted_layout(
    weights: WeightDirectory, plan: WeightPlan, metadata: Mapping[str, Any]
) -> ConvertedWeights:
    """Return the layout that a plan, in the dtypes of the files, makes of weights."""
    planned = {
        piece.tensor
        for rank in plan.ranks
        for parameter in rank.parameters.values()
        for piece in parameter.pieces
    }
    files = tuple(map(rank_file, range(len(plan.ranks))))
    unplanned = tuple(name for name in weights.tensors if name not in planned)
    return ConvertedWeights(weights, plan, files, unplanned, metadata)


def layout_to_json(layout: ConvertedWeights) -> dict[str, Any]:
    """Return the content of layout.json: what `read_layout` needs, and who has which file."""
    plan = layout.plan
    return {
        "format": FORMAT,
        "model_type": plan.model_type,
        **plan.sizes,
        "vocab_size": plan.vocab_size,
        "padded_vocab_size": plan.padded_vocab_size,
        "ranks": {
            str(number): {"file": file, **rank.place, "bytes": rank.bytes}
            for number, (rank, file) in enumerate(zip(plan.ranks, layout.files, strict=True))
        },
        "tensors": {
            name: {"file": tensor.file, "dtype": tensor.dtype, "shape": list(tensor.shape)}
            for name, tensor in layout.stored.tensors.items()
        },
        "index_metadata": dict(layout.index_metadata),
    }


def read_layout(directory: str | os.PathLike[str]) -> ConvertedWeights:
    """Return the layout of a converted directory, once its files are found to fit it.

    Raises:
        ConfigError: layout.json is damaged, or a file of a rank is missing, damaged, or has other
            parameters than the layout gives it.
    """
    path = Path(directory)
    values = read_mapping(path / LAYOUT, MOST_CHARACTERS)
    if values.get("format") != FORMAT:
        what = f"its format is {shown(values.get('format'))}; this version reads {FORMAT}"
        raise refused(path / LAYOUT, "format", shown(values.get("format")), what)
    weights = WeightDirectory(path, read_mapping(path / CONFIG), _tensors(path, values))
    sizes = [values.get("tensor_parallel"), values.get("pipeline_parallel")]
    if not all(type(size) is int for size in sizes):
        what = f"its tensor_parallel and pipeline_parallel are {shown(sizes)}, not whole numbers"
        raise refused(path / LAYOUT, "tensor_parallel", shown(sizes), what)
    plan = WeightPlanner(weights, *sizes).plan()  # type: ignore[arg-type]
    metadata = values.get("index_metadata")
    layout = converted_layout(weights, plan, metadata if isinstance(metadata, dict) else {})
    check_files(layout)
    if layout.unplanned:
        stored = read_header(path / UNPLANNED)
        missing = [name for name in layout.unplanned if name not in stored]
        if missing:
            raise refused(path / UNPLANNED, missing[0], None, f"{missing[0]} is not in it")
    return layout


def stored_weights(directory: str | os.PathLike[str]) -> WeightDirectory:
    """Return what `read_directory` or, of a converted directory, `read_layout` finds in it."""
    converted = os.path.exists(Path(directory) / LAYOUT)
    return read_layout(directory).stored if converted else read_directory(directory)


def check_files(layout: ConvertedWeights) -> None:
    """Raise `ConfigError` unless every rank's file has its parameters and no others."""
    for rank, file in zip(layout.plan.ranks, layout.files, strict=True):
        _check_file(layout.stored.directory / file, rank.parameters)


def _tensors(path: Path, values: Mapping[str, Any]) -> dict[str, StoredTensor]:
    stated = values.get("tensors")
    tensors = {}
    for name, entry in stated.items() if isinstance(stated, dict) else ():
        try:
            file, dtype, shape = entry["file"], entry["dtype"], tuple(entry["shape"])
            right = dtype in ITEM_BYTES and all(type(length) is int for length in shape)
            right = right and isinstance(file, str) and is_file_name(file)
        except (TypeError, KeyError):
            right = False
        if not right:
            what = f"it has no file, dtype and shape of {shown(name)}, but {shown(entry)}"
            raise refused(path / LAYOUT, name, shown(entry), what)
        tensors[name] = StoredTensor(file, dtype, shape, 0)
    return tensors


def _check_file(file: Path, wanted: Mapping[str, PlannedParameter]) -> None:
    tensors = read_header(file)
    other = sorted(set(tensors) ^ set(wanted))
    if other:
        what = "is not in it" if other[0] in wanted else "is in it, and the layout has no such"
        raise refused(file, other[0], None, f"parameter {other[0]} {what}")
    for name, planned in wanted.items():
        stored = tensors[name]
        if (stored.shape, FLOATING.get(stored.dtype)) != (planned.shape, planned.dtype):
            has = f"{stored.dtype} {list(stored.shape)}"
            right = f"{planned.dtype} {list(planned.shape)}"
            what = f"parameter {name} is {has} in it, and the layout makes it {right}"
            raise refused(file, name, stored.shape, what)
