"""What the ranks of a layout train: the shards of the whole model's tensors on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from mimokit.architecture.from_config import modules_of_config
from mimokit.architecture.modules import EncoderBranch
from mimokit.architecture.parallel_sizes import sizes_of
from mimokit.architecture.parameters_on_rank import Module
from mimokit.architecture.tensor_cut import Shape, ShardPlace
from mimokit.architecture.tensors import (
    PROJECTOR_NAME,
    ModuleTensor,
    module_tensors,
    stage_tensors,
)
from mimokit.config import ExperimentConfig
from mimokit.extras.strategies.exchanges.shards import HeldShard, Holding, Shapes, in_order
from mimokit.extras.strategies.replicas.gradients import StageGradients, without_replicas
from mimokit.planning.execution import ModuleExecution
from mimokit.planning.ranks import ModuleRanks


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
