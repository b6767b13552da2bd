"""What a rank of a replica trains, and which part of the whole model that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from torch import nn
from torch.distributed import ProcessGroup

from mimokit.config import MimoParallelismConfig
from mimokit.engine.models.weights import EMBEDDING, named_parameters
from mimokit.engine.parallel.collectives import gather_json
from mimokit.engine.strategies.shard import Cut, Shard
from mimokit.planning.strategies.fragments import Shape, in_order

_OF_THE_VOCABULARY = (EMBEDDING, "output_layer.weight")
"""Parameters of a language model whose first dimension may be padded."""

Part = tuple[str, nn.Parameter, Cut]


class _Model(Protocol):
    """The part of a model on a rank; see `mimokit.engine.training.modes.RankModel`."""

    @property
    def pg_collections(self) -> Mapping[str, Any]: ...
    def modules(self) -> Mapping[str, Any]: ...


def shard_of(config: MimoParallelismConfig, model: _Model) -> Shard:
    """Return what this rank trains. Collective over the ranks of the replica."""
    parts = list(_parts(config, model))
    mine = {name: list(cut.whole) for name, _, cut in parts}
    everywhere: dict[str, Shape] = {
        name: tuple(shape) for rank in gather_json(mine) for name, shape in rank.items()
    }
    return Shard(
        {name: parameter for name, parameter, _ in parts},
        {name: cut for name, _, cut in parts},
        in_order(everywhere),
    )


def _parts(config: MimoParallelismConfig, model: _Model) -> Iterator[Part]:
    for module, wrapped in model.modules().items():
        tensor_group = model.pg_collections[module].tp
        for path, parameter in named_parameters(wrapped.module).items():
            if parameter.requires_grad:
                rows = real_rows(config, module, path)
                yield f"{module}.{path}", parameter, _cut(parameter, tensor_group, rows)


def real_rows(config: MimoParallelismConfig, module: str, path: str) -> int | None:
    """Return the rows of a parameter that may be padded, without padding; None: it may not."""
    if path not in _OF_THE_VOCABULARY:
        return None
    network = config.get_architecture(module)
    return None if network.vocabulary_multiple is None else network.vocab_size


def _cut(parameter: nn.Parameter, tensor_group: ProcessGroup, rows: int | None) -> Cut:
    shape = tuple(parameter.shape)
    if not getattr(parameter, "tensor_model_parallel", False):
        return Cut(shape, shape)
    axis: int = parameter.partition_dim  # type: ignore[attr-defined]
    parts: int = parameter.partition_stride  # type: ignore[attr-defined]
    length = shape[axis] * tensor_group.size()
    whole = (*shape[:axis], length, *shape[axis + 1 :])
    if rows is not None:
        whole = (min(rows, length), *whole[1:])
    return Cut(whole, shape, axis, tensor_group.size(), tensor_group.rank(), parts)
