"""Writes the trained parameters of a run's ranks as a directory that Hugging Face reads.

Every rank writes its part of a module into a file; one process then puts the tensors together from
these files, block by block. No process holds the whole model.
"""

import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from mimokit.architecture.tensor_cut import Span
from mimokit.config.errors import ConfigError, Problem
from mimokit.engine.weights.files import LayoutTensors, TensorSource, opened
from mimokit.engine.weights.writing import files_of, write_hf, write_rank_file
from mimokit.planning.weights import PlannedParameter, WeightPlanner
from mimokit.planning.weights.layout_files import (
    ConvertedWeights,
    check_files,
    converted_layout,
    rank_file,
)


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
    """Write the parameters of one rank, in the dtypes of the weights that the run started from."""
    file = folder_of_ranks(directory) / module / rank_file(number)

    def read(name: str, planned: PlannedParameter) -> torch.Tensor:
        return parameters[name].detach().to("cpu", getattr(torch, planned.dtype))

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        write_rank_file(file, planner.rank(number), read)
    except OSError as error:
        why = error.strerror or str(error)
        sentence = f"{directory}: it cannot be written ({why})."
        raise ConfigError([Problem("runtime", "save_hf", str(directory), sentence)]) from None


class _TrainedTensors:
    def __init__(self, layouts: list[ConvertedWeights], others: TensorSource) -> None:
        self._others = others
        self._sources = [LayoutTensors(layout) for layout in layouts]
        self._places = {
            name: source
            for layout, source in zip(layouts, self._sources, strict=True)
            for name in layout.stored.tensors
            if name not in layout.unplanned
        }

    def block(self, tensor: str, rows: Span, columns: Span | None) -> torch.Tensor:
        return self._places.get(tensor, self._others).block(tensor, rows, columns)

    def close(self) -> None:
        for source in self._sources:
            source.close()


def finish(directory: Path, folders: Mapping[str, Mapping[str, WeightPlanner]]) -> None:
    """Make the directory of the files of all ranks, once they are complete.

    Args:
        folders: folder in the directory, empty for the directory -> the modules that started from
            the weights that are written there. What they do not have of these, such as the layers
            of a tower behind the feature layer, is written as it was.

    Raises:
        ConfigError: it exists, a file of a rank is missing, or ranks hold different values of what
            must be alike on both.
    """
    ranks = folder_of_ranks(directory)
    inside = {folder: ranks / folder / "whole" for folder in folders if folder}
    for folder, target in inside.items():
        _write(target, ranks, folders[folder])
    _write(directory, ranks, folders[""])
    for folder, target in inside.items():
        target.rename(directory / folder)
    shutil.rmtree(ranks, ignore_errors=True)


def _write(target: Path, ranks: Path, planners: Mapping[str, WeightPlanner]) -> None:
    layouts = []
    for name, planner in planners.items():
        stored = replace(planner.stored, directory=ranks / name)
        layouts.append(converted_layout(stored, planner.plan(), {}))
        check_files(layouts[-1])
    with (
        opened(next(iter(planners.values())).stored.directory) as (started_from, others),
        closing(_TrainedTensors(layouts, others)) as tensors,
    ):
        for _file in write_hf(started_from, tensors, target, files_of(started_from)):
            pass
