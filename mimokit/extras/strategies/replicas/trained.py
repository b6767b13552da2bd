"""How many numbers each rank of a layout trains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from mimokit.architecture.from_config import modules_of_config
from mimokit.architecture.modules import EncoderBranch
from mimokit.architecture.parallel_sizes import sizes_of
from mimokit.architecture.parameters_on_rank import Module
from mimokit.architecture.tensor_cut import ShardPlace, TensorCut
from mimokit.architecture.tensors import PROJECTOR_NAME, stage_tensors
from mimokit.config import ExperimentConfig
from mimokit.planning.ranks import ModuleRanks


def trained_entries(
    config: ExperimentConfig, modules: Mapping[str, ModuleRanks], layout_ranks: int
) -> tuple[int, ...]:
    """Return the entries of the shards that each rank trains, with their padding.

    Args:
        modules: the ranks of each module in one replica.
    """
    entries = [0] * layout_ranks
    for module in modules_of_config(config.model):
        ranks = modules[module.name]
        places = [
            replace(ranks.shard_place(rank), replica=0, expert_replica=0) for rank in ranks.stage(0)
        ]
        for stage in range(ranks.pipeline_parallel):
            cuts = _trained_on_stage(config, module, ranks, stage)
            at = {place: _entries(cuts, place) for place in dict.fromkeys(places)}
            for place, rank in zip(places, ranks.stage(stage), strict=True):
                entries[rank] += at[place]
    return tuple(entries)


def _entries(cuts: Mapping[str, TensorCut], place: ShardPlace) -> int:
    shards = (cut.at(place) for cut in cuts.values())
    return sum(math.prod(shard.shape) for shard in shards if shard.is_held)


def _trained_on_stage(
    config: ExperimentConfig, module: Module, ranks: ModuleRanks, stage: int
) -> dict[str, TensorCut]:
    sizes = sizes_of(config.model.get_parallelism(module.name), ranks.data_parallel, 1)
    network = config.model.get_architecture(module.name)
    partly = isinstance(module, EncoderBranch) or network.is_frozen
    frozen = network.frozen_parts if partly else frozenset()
    return {
        row.copy_of or row.name: row.cut
        for row in stage_tensors(module, sizes, stage)
        if row.trains and _part_of(module, row.name) not in frozen
    }


def _part_of(module: Module, name: str) -> str:
    if isinstance(module, EncoderBranch) and name.startswith(PROJECTOR_NAME):
        return "projector"
    return "encoder"
