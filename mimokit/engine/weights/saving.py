"""Writes the trained parameters of a run's ranks as a directory that Hugging Face reads.

Every rank writes its part of a module into a file; one process then makes the tensors of Hugging
Face of these files, block by block. No process holds the whole model.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from mimokit.architecture.tensor_cut import Span
from mimokit.config.errors import ConfigError, Problem
from mimokit.engine.weights.conversion import write_hf
from mimokit.engine.weights.files import LayoutTensors, TensorSource, opened, write_tensors
from mimokit.planning.weights import WeightPlanner
from mimokit.planning.weights.headers import FLOATING, ITEM_BYTES
from mimokit.planning.weights.layout_files import (
    ConvertedWeights,
    check_files,
    layout_of,
    rank_file,
)

_STORED = {name: stored for stored, name in FLOATING.items()}


def folder_of_ranks(directory: Path) -> Path:
    """Return where the ranks put their files until the directory is complete."""
    return directory.absolute().with_name(f".{directory.name}.ranks")


def write_rank(
    directory: Path,
    module: str,
    planner: WeightPlanner,
    number: int,
    parameters: Mapping[str, torch.Tensor],
) -> None:
    """Write the parameters of one rank, in the dtypes that the checkpoint has.

    Args:
        directory: the one that Hugging Face will read.
        planner: of the module in the checkpoint that it started from.

    Raises:
        ConfigError: a file cannot be written.
    """
    folder = folder_of_ranks(directory) / module
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
    except OSError as error:
        why = error.strerror or str(error)
        sentence = f"{directory}: it cannot be written ({why})."
        raise ConfigError([Problem("runtime", "save_hf", str(directory), sentence)]) from None


class _TrainedTensors:
    """The tensors of a checkpoint, those of trained modules from the files of their ranks.

    Args:
        others: where all other tensors are read from.
    """

    def __init__(self, layouts: list[ConvertedWeights], others: TensorSource) -> None:
        self._others = others
        self._sources = [LayoutTensors(one) for one in layouts]
        self._places = {
            name: source
            for layout, source in zip(layouts, self._sources, strict=True)
            for name in layout.checkpoint.tensors
            if name not in layout.unplanned
        }

    def block(self, tensor: str, rows: Span, columns: Span | None) -> torch.Tensor:
        """Return rows and columns of a tensor; None for all columns."""
        return self._places.get(tensor, self._others).block(tensor, rows, columns)

    def close(self) -> None:
        """Give the memory maps of the ranks' files back."""
        for source in self._sources:
            source.close()


def finish(directory: Path, weights: str, planners: Mapping[str, WeightPlanner]) -> None:
    """Make the directory of the files of all ranks, once they are complete.

    Args:
        weights: the checkpoint that the modules started from; what they do not have of it, such as
            the layers of a tower behind the feature layer, is written as it was.

    Raises:
        ConfigError: it exists, a file of a rank is missing, or ranks hold different values of what
            must be alike on both.
    """
    folder = folder_of_ranks(directory)
    layouts = []
    for name, planner in planners.items():
        stored = replace(planner.checkpoint, directory=folder / name)
        layouts.append(layout_of(stored, planner.plan(), {}))
        check_files(layouts[-1])
    with ExitStack() as stack:
        checkpoint, others = stack.enter_context(opened(weights))
        tensors = _TrainedTensors(layouts, others)
        stack.callback(tensors.close)
        write_hf(checkpoint, tensors, directory)
    shutil.rmtree(folder, ignore_errors=True)
