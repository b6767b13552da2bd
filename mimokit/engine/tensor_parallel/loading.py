"""Loads the part of a network that one rank computes, from the files of a checkpoint."""

from __future__ import annotations

import os

import torch

from mimokit.architecture.modules import LanguageModel, VisionEncoder
from mimokit.engine.tensor_parallel.exchange import Group, rank_of, size_of
from mimokit.engine.tensor_parallel.language import LanguageShard
from mimokit.engine.tensor_parallel.layout_tensors import opened
from mimokit.engine.tensor_parallel.reading import read_parameter
from mimokit.engine.tensor_parallel.tower import TowerShard
from mimokit.planning.weights import WeightPlanner
from mimokit.planning.weights.running import check_language, runnable_functions


def load_shard(
    directory: str | os.PathLike[str],
    group: Group,
    *,
    pipeline_parallel: int = 1,
    pipeline_rank: int = 0,
    dtype: str | None = None,
    arithmetic: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> LanguageShard | TowerShard:
    """Return what this rank computes of a language model or of a vision tower.

    Args:
        directory: as for `read_shard`.
        group: ranks that share every layer.
        pipeline_parallel: stages.
        pipeline_rank: the stage of this rank.
        dtype: torch's name of the dtype of loading; None: as in the files.
        arithmetic: what parameters become once they are loaded; None: they stay as they are.
        device: of the parameters.

    Raises:
        ConfigError: as `read_shard`, or the network has what cannot run.
    """
    with opened(directory) as (checkpoint, source):
        planner = WeightPlanner(checkpoint, size_of(group), pipeline_parallel, dtype)
        functions = runnable_functions(checkpoint)
        planned = planner.rank(planner.grid.rank(tp=rank_of(group), pp=pipeline_rank))
        parameters = {
            name: read_parameter(one, source).to(device, arithmetic)
            for name, one in planned.parameters.items()
        }
    model = planner.family.model
    if isinstance(model, LanguageModel):
        return LanguageShard(parameters, model, functions, group, planned.layers)
    assert isinstance(model, VisionEncoder)
    return TowerShard(parameters, model, functions, group, planned.layers)


def load_language(
    directory: str | os.PathLike[str],
    group: Group,
    *,
    dtype: str | None = None,
    device: torch.device | str = "cpu",
) -> LanguageShard:
    """Return what this rank computes of a language model; arguments as of `load_shard`.

    Raises:
        ConfigError: likewise, or the checkpoint is of a tower.
    """
    with opened(directory) as (checkpoint, _):
        check_language(checkpoint)
    shard = load_shard(directory, group, dtype=dtype, device=device)
    assert isinstance(shard, LanguageShard)
    return shard
