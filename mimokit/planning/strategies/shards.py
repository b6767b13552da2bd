"""What the ranks of a layout train: the shards of the whole model's tensors on each."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from mimokit.architecture.from_config import modules_of_config
from mimokit.architecture.modules import EncoderBranch
from mimokit.architecture.parallel_sizes import sizes_of
from mimokit.architecture.parameters_on_rank import Module
from mimokit.architecture.tensor_cut import Shape, ShardPlace, TensorShard
from mimokit.architecture.tensors import (
    PROJECTOR_NAME,
    ModuleTensor,
    module_tensors,
    stage_tensors,
)
from mimokit.config import ExperimentConfig, StrategyConfig
from mimokit.planning.execution import ModuleExecution
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.strategies.gradients import StageGradients, without_replicas


def fragments_of(shapes: Mapping[str, Shape], count: int) -> tuple[tuple[str, ...], ...]:
    """Return the names of the tensors of each fragment.

    Layers are strided: layer l belongs to fragment l mod `count`. A layer is what shares a name up
    to its first number, `blocks.3` say; layers are counted in their order. What is outside layers
    goes, the largest tensor first, where there are the fewest entries.
    """
    layers: dict[tuple[str, ...], int] = {}
    placed: dict[str, int] = {}
    for name in shapes:
        layer = _layer(name)
        if layer is not None:
            placed[name] = layers.setdefault(layer, len(layers)) % count
    entries = [0] * count
    for name, fragment in placed.items():
        entries[fragment] += math.prod(shapes[name])
    outside = (name for name in shapes if name not in placed)
    for name in sorted(outside, key=lambda name: -math.prod(shapes[name])):
        placed[name] = entries.index(min(entries))
        entries[placed[name]] += math.prod(shapes[name])
    return tuple(
        tuple(name for name in shapes if placed[name] == fragment) for fragment in range(count)
    )


def in_order(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return shapes by name, ascending, numbers within names by their value.

    Ranks that hold parts of a model make one order of all its tensors of it.
    """

    def key(name: str) -> list[tuple[int, str]]:
        parts = re.split(r"(\d+)", name)
        return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]

    return {name: shapes[name] for name in sorted(shapes, key=key)}


def _layer(name: str) -> tuple[str, ...] | None:
    parts = name.split(".")
    first = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    return None if first is None else tuple(parts[: first + 1])


@dataclass(frozen=True, slots=True)
class HeldShard:
    """The size of a tensor's shard on a rank, which several ranks have in common.

    Attributes:
        real: its entries without padding.
    """

    shape: Shape
    real: int

    @classmethod
    def of(cls, shard: TensorShard) -> HeldShard:
        """Return the size of a shard."""
        return cls(shard.shape, shard.entries)

    @property
    def entries(self) -> int:
        """Entries of the shard, with padding."""
        return math.prod(self.shape)


Holding = tuple[tuple[str, HeldShard], ...]
"""Name and shard of each tensor that trains on a rank."""

Shapes = tuple[tuple[str, Shape], ...]


@dataclass(frozen=True)
class TrainedShards:
    """What the ranks of a layout train.

    Attributes:
        whole: shapes of the tensors of the whole model that train, without padding.
        ranks: what each rank has of them; ranks with equal shards share one object.
        gradients: how many numbers each rank has of the reduced gradients.
    """

    whole: Shapes
    ranks: tuple[Holding, ...]
    gradients: tuple[int, ...]


def trained_shards(
    config: ExperimentConfig,
    modules: Mapping[str, ModuleRanks],
    executions: Mapping[str, ModuleExecution],
    layout_ranks: int,
) -> TrainedShards:
    """Return what the ranks of a layout train.

    Args:
        modules: the ranks of each module in one replica.
        executions: how they compute each module.
    """
    whole: dict[str, Shape] = {}
    parts: list[list[Holding]] = [[] for _ in range(layout_ranks)]
    gradients = [0] * layout_ranks
    for module in modules_of_config(config.model):
        ranks = modules[module.name]
        places = [ranks.shard_place(rank) for rank in ranks.stage(0)]
        for stage in range(ranks.pipeline_parallel):
            tensors = _on_stage(config, module, ranks, stage)
            cuts = {f"{module.name}.{row.copy_of or row.name}": row.cut for row in tensors}
            whole |= {name: cut.whole for name, cut in cuts.items()}
            reduced = StageGradients(tensors, _copied(module, ranks), executions[module.name])
            shards: dict[ShardPlace, Holding] = {}
            for place in dict.fromkeys(map(without_replicas, places)):
                held = [(name, cut.at(place)) for name, cut in cuts.items()]
                sizes = tuple((name, HeldShard.of(shard)) for name, shard in held if shard.is_held)
                # Ranks differ in their experts, and in the padding of a vocabulary.
                shards[place] = next((other for other in shards.values() if other == sizes), sizes)
            for place, rank in zip(places, ranks.stage(stage), strict=True):
                parts[rank].append(shards[without_replicas(place)])
                gradients[rank] += reduced.on(place)
    keys = [tuple(map(id, part)) for part in parts]
    joined = {
        key: tuple(chain.from_iterable(shards_of))
        for key, shards_of in zip(keys, parts, strict=True)
    }
    shards_of_ranks = tuple(joined[key] for key in keys)
    return TrainedShards(tuple(in_order(whole).items()), shards_of_ranks, tuple(gradients))


def _copied(module: Module, ranks: ModuleRanks) -> frozenset[str]:
    """Return the names of tensors that two stages have."""
    if ranks.pipeline_parallel == 1:
        return frozenset()
    return frozenset(row.copy_of for row in module_tensors(module) if row.copy_of is not None)


def shapes_of_size(config: StrategyConfig, parameters: int) -> dict[str, Shape]:
    """Return shapes of so many parameters, where those of the tensors are not known.

    They are taken as one matrix whose sides DeMo cuts into whole blocks, and a rest; for Streaming
    DiLoCo as many layers as there are fragments, of nearly equal size.
    """
    side = config.compression_chunk
    rows = parameters // side**2 * side
    shapes: dict[str, Shape] = {"matrix": (rows, side), "rest": (parameters - rows * side,)}
    if config.name == "streaming_diloco":
        part, rest = divmod(parameters, config.fragments)
        shapes = {f"layers.{n}": (part + (n < rest),) for n in range(config.fragments)}
    return {name: shape for name, shape in shapes.items() if all(shape)}


def _on_stage(
    config: ExperimentConfig, module: Module, ranks: ModuleRanks, stage: int
) -> list[ModuleTensor]:
    """Return the tensors that train on a stage."""
    sizes = sizes_of(config.model.get_parallelism(module.name), ranks.data_parallel, 1)
    network = config.model.get_architecture(module.name)
    partly = isinstance(module, EncoderBranch) or network.is_frozen
    frozen = network.frozen_parts if partly else frozenset()
    tensors = [
        tensor
        for tensor in stage_tensors(module, sizes, stage)
        if _part_of(module, tensor.name) not in frozen
    ]
    return [row for row in tensors if row.trains]


def _part_of(module: Module, name: str) -> str:
    if isinstance(module, EncoderBranch) and name.startswith(PROJECTOR_NAME):
        return "projector"
    return "encoder"
