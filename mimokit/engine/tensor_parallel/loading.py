"""Loads the part of a network that one rank computes, from the files of a checkpoint."""

from __future__ import annotations

import os

import torch

from mimokit.architecture.huggingface.functions import functions_of
from mimokit.architecture.modules import LanguageModel
from mimokit.config.errors import ConfigError, Problem
from mimokit.engine.tensor_parallel.exchange import Group, rank_of, size_of
from mimokit.engine.tensor_parallel.language import LanguageShard
from mimokit.engine.tensor_parallel.layout_tensors import opened
from mimokit.engine.tensor_parallel.reading import read_parameter
from mimokit.planning.weights import WeightPlanner


def load_language(
    directory: str | os.PathLike[str],
    group: Group,
    *,
    pipeline_parallel: int = 1,
    pipeline_rank: int = 0,
    dtype: str | None = None,
    device: torch.device | str = "cpu",
) -> LanguageShard:
    """Return what this rank computes of a language model.

    Args:
        directory: as for `read_shard`.
        group: ranks that share every layer.
        pipeline_parallel: stages.
        pipeline_rank: the stage of this rank.
        dtype: torch's name of the dtype of loading; None: as in the files.
        device: of the parameters.

    Raises:
        ConfigError: as `read_shard`, or the checkpoint is of another kind of network.
    """
    with opened(directory) as (checkpoint, source):
        planner = WeightPlanner(checkpoint, size_of(group), pipeline_parallel, dtype)
        model = planner.family.model
        if not isinstance(model, LanguageModel):
            kind = planner.family.model_type
            sentence = (
                f"{directory}: its model_type is {kind}; logits and tokens are made by language "
                "models alone."
            )
            raise ConfigError([Problem("weights", "model_type", kind, sentence)])
        planned = planner.rank(planner.grid.rank(tp=rank_of(group), pp=pipeline_rank))
        parameters = {
            name: read_parameter(one, source).to(device) for name, one in planned.parameters.items()
        }
        functions = functions_of(checkpoint.config)
    return LanguageShard(parameters, model, functions, group, planned.layers)
