"""Converts weights into the files of a layout's ranks, between layouts, and back.

Every file is written tensor by tensor from slices of the others; the model is nowhere whole. The
new directory appears under its name when it is complete.
"""

import json
import os
from pathlib import Path

from mimokit.engine.weights.files import bytes_of_data, opened
from mimokit.engine.weights.shard import read_parameter
from mimokit.engine.weights.writing import (
    copy_others,
    files_of,
    index_metadata,
    new_directory,
    shapes_of,
    write_hf,
    write_rank_file,
    write_whole,
)
from mimokit.planning.weights import plan_weights
from mimokit.planning.weights.layout_files import (
    LAYOUT,
    UNPLANNED,
    ConvertedWeights,
    converted_layout,
    layout_to_json,
)
from mimokit.progress import shown


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
        layout = converted_layout(weights, plan, index_metadata(Path(source)))
        unplanned = shapes_of(weights, layout.unplanned)
        needed = sum(rank.bytes for rank in plan.ranks) + bytes_of_data(unplanned)
        with (
            new_directory(Path(target), needed) as folder,
            shown("Converting", total=len(plan.ranks)) as bar,
        ):
            for number, (rank, file) in enumerate(zip(plan.ranks, layout.files, strict=True)):
                bar.update(number, f"Writing {file}")
                write_rank_file(folder / file, rank, lambda _, p: read_parameter(p, tensors))
            if unplanned:
                write_whole(folder / UNPLANNED, unplanned, tensors)
            copy_others(weights.directory, folder)
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
        files = files_of(weights, max_shard_size)
        with shown("Converting", total=len(files)) as bar:
            for number, file in enumerate(write_hf(weights, tensors, Path(target), files)):
                bar.update(number, f"Writing {file}")
    return tuple(files)
