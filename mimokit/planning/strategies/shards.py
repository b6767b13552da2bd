"""What the ranks of a layout train: the shards of the whole model's tensors on each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from mimokit.architecture.from_config import model_of_config
from mimokit.architecture.modules import EncoderBranch
from mimokit.architecture.parallel_sizes import Numbers, ParallelSizes, sizes_of
from mimokit.architecture.parameters_on_rank import (
    Module,
    projector_parameters,
    rank_parameters,
)
from mimokit.architecture.tensors import PROJECTOR_NAME, ModuleTensor, module_tensors
from mimokit.config import ExperimentConfig, StrategyConfig
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.strategies.fragments import Shape, in_order


@dataclass(frozen=True, slots=True)
class HeldShard:
    """The shard of a tensor on a rank.

    Attributes:
        shape: of the shard, with padding.
        real: its entries without padding.
    """

    shape: Shape
    real: int

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
    """

    whole: Shapes
    ranks: tuple[Holding, ...]


def trained_shards(
    config: ExperimentConfig, modules: Mapping[str, ModuleRanks], layout_ranks: int
) -> TrainedShards:
    """Return what the ranks of a layout train.

    Args:
        config: of the layout, with a strategy.
        modules: the ranks of each module in one replica.
        layout_ranks: ranks of one replica.
    """
    whole: dict[str, Shape] = {}
    parts: list[list[Holding]] = [[] for _ in range(layout_ranks)]
    for module in _described(config):
        ranks = modules[module.name]
        for stage in range(ranks.pipeline_parallel):
            tensors = _on_stage(config, module, ranks, stage)
            whole |= {one.name: one.whole for one in tensors}
            shards = [_held(tensors, number) for number in range(ranks.tensor_parallel)]
            # Ranks differ in the padding of a vocabulary alone.
            shards = [next(one for one in shards if one == own) for own in shards]
            for place, rank in enumerate(ranks.stage(stage)):
                parts[rank].append(shards[place % ranks.tensor_parallel])
    keys = [tuple(map(id, held)) for held in parts]
    joined = {key: tuple(chain.from_iterable(held)) for key, held in zip(keys, parts, strict=True)}
    return TrainedShards(tuple(in_order(whole).items()), tuple(joined[key] for key in keys))


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
        shapes = {f"layers.{one}": (part + (one < rest),) for one in range(config.fragments)}
    return {name: shape for name, shape in shapes.items() if all(shape)}


def _described(config: ExperimentConfig) -> Iterator[Module]:
    """Yield the modules that train between replicas, as the engine builds them."""
    described = model_of_config(config.model, config.name)
    network = config.model.get_architecture(config.model.llm_module_name)
    yield from described.branches
    # The engine pads a vocabulary only where the config says so.
    yield replace(described.language, vocab_multiple=network.vocabulary_multiple or 1)


def _on_stage(
    config: ExperimentConfig, module: Module, ranks: ModuleRanks, stage: int
) -> list[ModuleTensor]:
    """Return the tensors of a module that train on a stage, by their names in the whole model."""
    assert config.strategy is not None
    sizes = sizes_of(config.model.get_parallelism(module.name), ranks.data_parallel, 1)
    network = config.model.get_architecture(module.name)
    partly = isinstance(module, EncoderBranch) or network.is_frozen
    frozen = network.frozen_parts if partly else frozenset()
    found = [
        replace(one, name=f"{module.name}.{one.name}")
        for one in module_tensors(module, sizes, stage)
        if _part_of(module, one.name) not in frozen
    ]
    # Parts of networks that are planned but cannot run yet have no shapes.
    rest = _trained(module, frozen, sizes, stage) - sum(one.entries for one in found)
    for name, shape in shapes_of_size(config.strategy, max(0, rest)).items():
        found.append(ModuleTensor(f"{module.name}.rest of stage {stage}.{name}", shape, shape))
    return found


def _part_of(module: Module, name: str) -> str:
    if isinstance(module, EncoderBranch) and name.startswith(PROJECTOR_NAME):
        return "projector"
    return "encoder"


def _trained(module: Module, frozen: Iterable[str], sizes: ParallelSizes, stage: int) -> int:
    """Return the numbers of a module that train on a rank of a stage."""
    whole: Numbers = rank_parameters(module, sizes, stage).total
    projector: Numbers = 0
    if isinstance(module, EncoderBranch):
        projector = projector_parameters(module, sizes, stage)
    of_encoder = 0 if "encoder" in frozen else whole - projector
    of_projector = 0 if "projector" in frozen else projector
    return round(float(of_encoder + of_projector))


def _held(tensors: Iterable[ModuleTensor], tensor_rank: int) -> Holding:
    return tuple((one.name, HeldShard(one.shape, one.real_entries(tensor_rank))) for one in tensors)
