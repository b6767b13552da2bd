"""What makes a checkpoint or a layout of it wrong."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.architecture.huggingface.families import Family
from mimokit.axes import LAYOUT_FIELDS, Axis
from mimokit.config.errors import ConfigError, refuse_if_any
from mimokit.planning.weights.directory import FLOATING, WeightDirectory, refused
from mimokit.units import counted, listed

MOST_RANKS = 2**14
"""Ranks that are planned at most."""


def check_tensors(checkpoint: WeightDirectory, family: Family) -> None:
    """Raise `ConfigError` unless the files contain just the tensors that the config describes."""
    stored, wanted = checkpoint.tensors, family.found.tensors
    where = checkpoint.directory
    problems: list[ConfigError] = []
    missing = [name for name in wanted if name not in stored]
    if missing:
        problems.append(refused(where, missing[0], None, f"{_some(missing)} in none of its files, "
                                "but config.json describes a model that has it"))  # fmt: skip
    unexpected = [
        name for name in stored if name not in wanted and not family.found.passes_over(name)
    ]
    if unexpected:
        what = f"{_some(unexpected)} in {stored[unexpected[0]].file}, but no part of the model"
        problems.append(refused(where, unexpected[0], None, f"{what} that config.json describes"))
    for name, shape in wanted.items():
        if (found := stored.get(name)) is None:
            continue
        file = where / found.file
        if found.shape != shape:
            what = (
                f"{name} has the shape {list(found.shape)}, and config.json makes it {list(shape)}"
            )
            problems.append(refused(file, name, found.shape, what))
        elif found.dtype not in FLOATING:
            right = listed([*FLOATING])
            what = f"{name} is stored as {found.dtype}; only {right} can be read"
            problems.append(refused(file, name, found.dtype, what))
        if len(problems) == 3:
            break
    problems += _mixed_dtypes(checkpoint, family)
    refuse_if_any(one for error in problems for one in error.problems)


def _mixed_dtypes(checkpoint: WeightDirectory, family: Family) -> Iterator[ConfigError]:
    """Yield the first parameter that would be made of tensors of several dtypes."""
    stored = checkpoint.tensors
    for parameter in family.found.parameters:
        names = {one.tensor for one in parameter.sources if one.tensor in stored}
        dtypes = {stored[name].dtype: name for name in sorted(names)}
        if len(dtypes) > 1:
            one, other = list(dtypes.items())[:2]
            what = f"{one[1]} is stored as {one[0]} and {other[1]} as {other[0]}"
            right = f"they form {parameter.row.name}, and must have one dtype"
            yield refused(checkpoint.directory, one[1], [*dtypes], f"{what}; {right}")
            return


def _some(names: list[str]) -> str:
    others = len(names) - 1
    if not others:
        return f"{names[0]} is"
    return f"{names[0]} and {counted(others, 'other')} are"


def check_sizes(family: Family, tensor_parallel: int, pipeline_parallel: int) -> None:
    """Raise `ConfigError` unless a layout can cut a model."""
    for axis, size in ((Axis.TENSOR, tensor_parallel), (Axis.PIPELINE, pipeline_parallel)):
        if size < 1:
            name = LAYOUT_FIELDS[axis]
            raise refused("Layout", name, size, f"{name} is {size}; it must be at least 1")
    if tensor_parallel * pipeline_parallel > MOST_RANKS:
        ranks = tensor_parallel * pipeline_parallel
        raise refused("Layout", "ranks", ranks, f"tensor_parallel {tensor_parallel} times "
                      f"pipeline_parallel {pipeline_parallel} are {ranks:,} ranks; at most "
                      f"{MOST_RANKS:,} can be planned")  # fmt: skip
    for whose, net in family.nets.items():
        numbers = {"attention heads": net.heads, "feed-forward width": net.ffn}
        for what, number in numbers.items():
            if number % tensor_parallel:
                raise _undivided(tensor_parallel, f"the {what} of {whose}, {number}", number)
        groups = net.kv_heads
        if groups % tensor_parallel and tensor_parallel % groups:
            sentence = (
                f"tensor_parallel {tensor_parallel} neither divides the {groups} key and value "
                f"groups of {whose} nor is a multiple of them; choose a divisor or a multiple"
            )
            raise refused("Layout", "tensor_parallel", tensor_parallel, sentence)
        if (net.heads + 2 * groups) * net.head_dim % tensor_parallel:
            raise _undivided(
                tensor_parallel, f"the rows of query, key and value of {whose}", groups
            )
    for parameter in family.found.parameters:
        cut = parameter.row.cut
        if not cut.divides(tensor_parallel):
            what = f"{parameter.row.name} {list(cut.whole)}"
            raise _undivided(tensor_parallel, what, cut.whole[cut.dimension or 0])
    layers = family.stacked.layers
    if pipeline_parallel > layers:
        sentence = (
            f"pipeline_parallel is {pipeline_parallel}, and the model has "
            f"{counted(layers, 'layer')}; a stage needs at least one"
        )
        raise refused("Layout", "pipeline_parallel", pipeline_parallel, sentence)
    if layers % pipeline_parallel and (layers + 2) % pipeline_parallel:
        sentence = (
            f"pipeline_parallel {pipeline_parallel} divides neither the {layers} layers nor, with "
            f"embedding and loss counted as layers, {layers + 2}; choose a size that divides one"
        )
        raise refused("Layout", "pipeline_parallel", pipeline_parallel, sentence)


def _undivided(size: int, what: str, number: int) -> ConfigError:
    sentence = f"tensor_parallel {size} does not divide {what}; choose a divisor"
    return refused("Layout", "tensor_parallel", number, sentence)
