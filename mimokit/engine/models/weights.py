"""Fills the modules of a rank from the checkpoints that they start from."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mimokit.config import ModuleArchitecture
from mimokit.engine.megatron import ProcessGroupCollection
from mimokit.engine.models.parameter_names import parameters_of_whole
from mimokit.engine.weights.layout_tensors import opened
from mimokit.engine.weights.reading import fill
from mimokit.planning.weights.modules import module_planner

_PROJECTOR = "input_projections."


def load_weights(
    module: torch.nn.Module,
    network: ModuleArchitecture,
    language: bool,
    groups: ProcessGroupCollection,
) -> None:
    """Fill the parameters of a module's part in place: it reads only what this rank holds.

    The projector of an encoder whose checkpoint has none keeps its random weights.

    Args:
        module: its part on this rank, not wrapped yet.
        network: its architecture, which names the checkpoint or none.

    Raises:
        ConfigError: the checkpoint is damaged or of another network.
    """
    if network.weights is None:
        return
    with opened(network.weights) as (checkpoint, source):
        planner = module_planner(
            checkpoint,
            network,
            language=language,
            tensor_parallel=groups.tp.size(),
            pipeline_parallel=groups.pp.size(),
        )
        planned = planner.rank(planner.grid.rank(tp=groups.tp.rank(), pp=groups.pp.rank()))
        parameters: Mapping[str, torch.nn.Parameter] = parameters_of_whole(module)
        if not any(one.row.name.startswith(_PROJECTOR) for one in planner.family.found.parameters):
            parameters = {
                one: value for one, value in parameters.items() if not one.startswith(_PROJECTOR)
            }
        fill(parameters, planned, source)
