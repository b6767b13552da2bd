"""Leaves the trained language model of a run as a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from mimokit.config import MimoParallelismConfig
from mimokit.engine.models.parameter_names import parameters_of_whole
from mimokit.engine.tensor_parallel.layout_tensors import opened
from mimokit.engine.tensor_parallel.saving import finish, write_rank
from mimokit.engine.training.modes import RankModel
from mimokit.planning.weights.modules import module_planner


def save_hf(model: RankModel, config: MimoParallelismConfig, directory: str) -> None:
    """Write the language model, rank by rank. Collective over the world.

    The directory has to be on a file system that all ranks share.

    Args:
        model: the model on this rank.
        config: of the model; the language model started from a checkpoint.
        directory: the new directory.

    Raises:
        ConfigError: it cannot be written, or replicated parameters differ between ranks.
    """
    name, target = config.llm_module_name, Path(directory)
    network, module = config.get_architecture(name), model.modules().get(name)
    assert network.weights is not None
    if module is not None:
        groups = model.pg_collections[name]
        if groups.dp.rank() == 0:
            with opened(network.weights) as (checkpoint, source):
                planner = module_planner(
                    checkpoint,
                    network,
                    language=True,
                    tensor_parallel=groups.tp.size(),
                    pipeline_parallel=groups.pp.size(),
                )
                number = planner.grid.rank(tp=groups.tp.rank(), pp=groups.pp.rank())
                parameters = parameters_of_whole(module.module)
                write_rank(target, planner, number, parameters, source)
    dist.barrier()
    if dist.get_rank() == 0:
        finish(target)
    dist.barrier()
