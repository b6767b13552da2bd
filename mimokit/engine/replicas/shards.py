"""What a rank of a replica trains, and which part of the whole model that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from mimokit.architecture.tensor_cut import Shape
from mimokit.engine.models.weights import named_parameters
from mimokit.engine.parallel.collectives import gather_json
from mimokit.engine.parallel.marks import shard_of
from mimokit.engine.strategies.shard import Shard
from mimokit.planning.strategies.fragments import in_order


class _Model(Protocol):
    """The part of a model on a rank; see `mimokit.engine.pipeline.model.RankModel`."""

    def modules(self) -> Mapping[str, Any]: ...


def trained_on_rank(model: _Model) -> Shard:
    """Return what this rank trains. Collective over the ranks of the replica."""
    trained = {
        f"{module}.{path}": parameter
        for module, wrapped in model.modules().items()
        for path, parameter in named_parameters(wrapped.module).items()
        if parameter.requires_grad
    }
    shards = {name: shard_of(parameter) for name, parameter in trained.items()}
    wholes = {name: list(shard.cut.whole) for name, shard in shards.items()}
    everywhere: dict[str, Shape] = {
        name: tuple(shape) for rank in gather_json(wholes) for name, shape in rank.items()
    }
    return Shard(trained, shards, in_order(everywhere))
