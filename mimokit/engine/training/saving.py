"""Leaves the trained modules of a run as a Hugging Face directory."""

from pathlib import Path

import torch
import torch.distributed as dist

from mimokit.axes import Axis
from mimokit.config import ModelSection
from mimokit.engine.models.weights import numbered_stages, parameters_of_whole
from mimokit.engine.parallel.main_weights import main_value
from mimokit.engine.pipeline.model import RankModel
from mimokit.engine.run_of_rank import Peers
from mimokit.engine.weights.files import opened
from mimokit.engine.weights.saving import finish, write_rank
from mimokit.planning.weights import WeightPlanner
from mimokit.planning.weights.modules import module_planner, saved_modules


def save_hf(
    model: RankModel, config: ModelSection, directory: str, peers: Peers | None = None
) -> None:
    """Write the modules that started from weights, see `saved_modules`. Collective.

    Every rank writes its part: main weights, in the types of the weights that the run started from.
    The directory has to be on a file system that all ranks share. The
    language model of the config must have started from weights.

    Args:
        peers: of this rank in other replicas, with which its weights become their mean; the first
            replica writes it.

    Raises:
        ConfigError: it cannot be written, or replicated parameters differ between ranks.
    """
    if peers is not None:
        take_mean(model, peers)
        if peers.replica > 0:
            return
    target, folders = Path(directory), saved_modules(config)
    planners = {name: _planner(config, model, name) for name in folders}
    for name, planner in planners.items():
        module = model.modules().get(name)
        if module is None:
            continue
        mine = all(map(module.ownership.writes, parameters_of_whole(module.module).values()))
        stages = numbered_stages(module.module, planner, model.pg_collections[name])
        for number, part in stages:
            # Collective: ranks that write nothing have a share of what the others write.
            trained = {key: main_value(p) for key, p in parameters_of_whole(part).items()}
            if mine:
                write_rank(target, name, planner, number, trained)
    dist.barrier()
    if dist.get_rank() == 0:
        finish(target, {
            folder: {name: planners[name] for name, of in folders.items() if of == folder}
            for folder in folders.values()
        })  # fmt: skip
    dist.barrier()


@torch.no_grad()
def take_mean(model: RankModel, peers: Peers) -> None:
    """Let the weights that train be the mean of all replicas. Collective over the peers.

    Sums are in fp64, so that the mean of equal weights is what they are.
    """
    for module in model.modules().values():
        for parameter in module.module.parameters():
            if parameter.requires_grad:
                total = parameter.to(torch.float64)
                peers.sum(total)
                parameter.copy_(total / peers.plan.replicas)


def _planner(config: ModelSection, model: RankModel, name: str) -> WeightPlanner:
    execution, network = model.plan.executions[name], config.get_architecture(name)
    assert network.weights is not None
    with opened(network.weights) as (source, _):
        return module_planner(
            source,
            network,
            language=name == config.llm_module_name,
            tensor_parallel=execution.size(Axis.TENSOR),
            pipeline_parallel=int(execution.sizes.chunks),
        )
