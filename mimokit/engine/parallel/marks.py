"""Megatron's marks of parameters, and the row of the cut table that every parameter gets.

Megatron's layers mark what tensor parallelism cuts. mimokit goes by its own table
(`mimokit.architecture.tensors`) for the modules that it builds; here the two are compared as a
module is built. Of a module that the user builds no table knows, so that its marks count.
"""

from collections.abc import Iterable, Mapping

import torch

from mimokit.architecture.tensor_cut import ShardPlace, TensorCut, TensorShard

_ATTRIBUTE = "tensor_shard"
_OF_SLICE = "sequence_parallel"


def is_cut(parameter: torch.Tensor) -> bool:
    """Whether Megatron marks it as one of which every tensor-parallel rank has a part."""
    return bool(getattr(parameter, "tensor_model_parallel", False))


def is_tied_copy(parameter: torch.Tensor) -> bool:
    """Whether it is the last stage's copy of the embedding."""
    return bool(getattr(parameter, "shared", False))


def is_expert(parameter: torch.Tensor) -> bool:
    """Whether it belongs to an expert, whose ranks are those of the expert view of a grid."""
    return not getattr(parameter, "allreduce", True)


def is_of_slice(parameter: torch.Tensor) -> bool:
    """Whether its gradient on a tensor-parallel rank is that of a slice of the positions."""
    return bool(getattr(parameter, _OF_SLICE, False))


def mark_of_slice(parameters: Iterable[torch.Tensor]) -> None:
    """Mark parameters that are used on a slice of the positions, as Megatron's layers do."""
    for parameter in parameters:
        setattr(parameter, _OF_SLICE, True)


def cut_by_marks(parameter: torch.nn.Parameter, tensor_parallel: int) -> TensorCut:
    """Return how a parameter is cut according to its marks."""
    shape = tuple(parameter.shape)
    if not is_cut(parameter):
        return TensorCut(shape)
    dimension: int = parameter.partition_dim  # type: ignore[attr-defined]
    parts: int = parameter.partition_stride  # type: ignore[attr-defined]
    length = shape[dimension] * tensor_parallel
    return TensorCut((*shape[:dimension], length, *shape[dimension + 1 :]), dimension, parts)


def shard_of(parameter: torch.nn.Parameter) -> TensorShard:
    """Return which part of which whole tensor a parameter is."""
    shard: TensorShard = getattr(parameter, _ATTRIBUTE)
    return shard


def set_shards(
    module: str,
    parameters: Mapping[str, torch.nn.Parameter],
    table: Mapping[str, TensorCut],
    place: ShardPlace,
) -> None:
    """Give every parameter of a module that mimokit builds its row of the table.

    Both mappings are by names in the whole module.

    Raises:
        ValueError: a row is missing, or differs from a parameter's shape or marks.
    """
    for name, parameter in parameters.items():
        row = table.get(name)
        wrong = _difference(row, parameter, place)
        if wrong or row is None:
            raise ValueError(f"Module {module!r}, parameter {name}: {wrong}.")
        setattr(parameter, _ATTRIBUTE, row.at(place))


def set_own_shards(
    parameters: Mapping[str, torch.nn.Parameter], table: Mapping[str, TensorCut], place: ShardPlace
) -> None:
    """Give the parameters of a module that the user builds their rows where those fit, else marks.

    A projector has rows, and so has a language model that is built as mimokit's.
    """
    for name, parameter in parameters.items():
        row = table.get(name)
        if row is None or _difference(row, parameter, place):
            row = cut_by_marks(parameter, place.tensor_parallel)
        setattr(parameter, _ATTRIBUTE, row.at(place))


def _difference(row: TensorCut | None, parameter: torch.nn.Parameter, place: ShardPlace) -> str:
    if row is None:
        return "the table of tensors has no row for it"
    marked = cut_by_marks(parameter, place.tensor_parallel)
    if (row.dimension, row.parts) != (marked.dimension, marked.parts):
        return f"Megatron has {marked.words} cut, the table of tensors {row.words}"
    shape, on_rank = row.at(place).shape, tuple(parameter.shape)
    if shape != on_rank:
        return f"it is {list(on_rank)} on this rank, in the table of tensors {list(shape)}"
    return ""


def check_marks(module: str, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Raise a ValueError if a parameter of the user's is marked as cut without saying how."""
    for name, parameter in parameters.items():
        dimension = getattr(parameter, "partition_dim", None)
        stride = getattr(parameter, "partition_stride", None)
        right = isinstance(dimension, int) and 0 <= dimension < parameter.dim() and stride
        if is_cut(parameter) and not right:
            raise ValueError(
                f"Module {module!r}: its parameter {name} is marked as cut "
                f"(tensor_model_parallel), but its partition_dim is {dimension} and its "
                f"partition_stride is {stride}; set them to one of its {parameter.dim()} "
                "dimensions and to 1, as "
                "megatron.core.tensor_parallel.set_tensor_model_parallel_attributes does."
            )
