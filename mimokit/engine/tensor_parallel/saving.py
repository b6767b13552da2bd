"""Writes the trained parameters of a run's ranks as a directory that Hugging Face reads.

Every rank writes its part into a file; one process then makes the tensors of Hugging Face of these
files, block by block. No process holds the whole model.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from mimokit.config.errors import ConfigError, Problem
from mimokit.engine.tensor_parallel.conversion import convert_to_hf
from mimokit.engine.tensor_parallel.files import TensorSource
from mimokit.engine.tensor_parallel.writing import write_tensors
from mimokit.planning.weights import WeightPlanner
from mimokit.planning.weights.checkpoint import CONFIG
from mimokit.planning.weights.headers import FLOATING, ITEM_BYTES
from mimokit.planning.weights.layout_files import (
    LAYOUT,
    UNPLANNED,
    layout_of,
    layout_to_json,
    rank_file,
)

_STORED = {name: stored for stored, name in FLOATING.items()}


def folder_of_ranks(directory: Path) -> Path:
    """Return where the ranks put their files until the directory is complete."""
    return directory.absolute().with_name(f".{directory.name}.ranks")


def write_rank(
    directory: Path,
    planner: WeightPlanner,
    number: int,
    parameters: Mapping[str, torch.Tensor],
    source: TensorSource,
) -> None:
    """Write the parameters of one rank, in the dtypes that the checkpoint has.

    Args:
        directory: the one that Hugging Face will read.
        planner: of the checkpoint that the parameters started from.
        number: of the rank in its plan; rank 0 writes what belongs to no rank as well.
        parameters: by the names of the plan.
        source: of the tensors of the checkpoint that no rank holds.

    Raises:
        ConfigError: a file cannot be written.
    """
    folder = folder_of_ranks(directory)
    planned = planner.rank(number)
    shapes = {name: (_STORED[one.dtype], one.shape) for name, one in planned.parameters.items()}
    ordered = dict(sorted(shapes.items(), key=lambda one: -ITEM_BYTES[one[1][0]]))

    def read(name: str) -> torch.Tensor:
        dtype = getattr(torch, planned.parameters[name].dtype)
        return parameters[name].detach().to("cpu", dtype)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / rank_file(number)).unlink(missing_ok=True)
        write_tensors(folder / rank_file(number), ordered, read)
        if number == 0:
            _write_common(folder, planner, source)
    except OSError as error:
        why = error.strerror or str(error)
        sentence = f"{directory}: it cannot be written ({why})."
        raise ConfigError([Problem("runtime", "save_hf", str(directory), sentence)]) from None


def _write_common(folder: Path, planner: WeightPlanner, source: TensorSource) -> None:
    checkpoint = planner.checkpoint
    layout = layout_of(checkpoint, planner.plan(), {})
    if layout.unplanned:
        stored = checkpoint.tensors
        shapes = {name: (stored[name].dtype, stored[name].shape) for name in layout.unplanned}
        (folder / UNPLANNED).unlink(missing_ok=True)

        def read(name: str) -> torch.Tensor:
            shape = stored[name].shape
            return source.block(name, (0, shape[0] if shape else 0), None)

        write_tensors(folder / UNPLANNED, shapes, read)
    for file in sorted(checkpoint.directory.glob("*.json")):
        if ".index." not in file.name and file.name != LAYOUT:
            shutil.copy(file, folder / file.name)
    shutil.copy(checkpoint.directory / CONFIG, folder / CONFIG)
    (folder / LAYOUT).write_text(json.dumps(layout_to_json(layout)))


def finish(directory: Path) -> None:
    """Make the directory of the files of all ranks, once they are complete.

    Raises:
        ConfigError: it exists, or ranks hold different values of what must be alike on both.
    """
    folder = folder_of_ranks(directory)
    convert_to_hf(folder, directory)
    shutil.rmtree(folder, ignore_errors=True)
