"""Loads the part of a network that one rank computes, and keeps models between calls."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist

from mimokit.architecture.modules import LanguageModel, MultimodalModel, VisionEncoder
from mimokit.engine.inference.exchange import Group, rank_of, size_of
from mimokit.engine.inference.language import LanguageShard
from mimokit.engine.inference.vision import LlavaShard, TowerShard
from mimokit.engine.weights.files import TensorSource, opened
from mimokit.engine.weights.reading import read_parameter
from mimokit.planning.weights import RankWeights
from mimokit.planning.weights.running import (
    check_runnable,
    computed_planner,
    language_planner,
    runnable_functions,
    runnable_tower_functions,
)

Shard = LanguageShard | TowerShard | LlavaShard


def load_shard(
    directory: str | os.PathLike[str],
    group: Group,
    *,
    pipeline_parallel: int = 1,
    pipeline_rank: int = 0,
    dtype: str | None = None,
    arithmetic: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Shard:
    """Return what this rank computes of a language model, of a vision tower, or of a LLaVA.

    Args:
        directory: as for `read_shard`.
        dtype: torch's name of the dtype of loading; None: as in the files.
        arithmetic: what parameters become once they are loaded; None: they stay as they are.

    Raises:
        ConfigError: as `read_shard`, or the network has what cannot run.
    """
    with opened(directory) as (weights, source):
        planner = computed_planner(weights, size_of(group), pipeline_parallel, dtype)
        planned = planner.rank(planner.grid.rank(tp=rank_of(group), pp=pipeline_rank))
        check_runnable(weights)
        functions = runnable_functions(weights)
        parameters = _read(planned, source, device, arithmetic)
    model, span = planner.family.model, planned.layers
    if isinstance(model, MultimodalModel):
        tower = runnable_tower_functions(weights)
        return LlavaShard(parameters, model, functions, tower, group, span)
    if isinstance(model, LanguageModel):
        return LanguageShard(parameters, model, functions, group, span)
    assert isinstance(model, VisionEncoder)
    return TowerShard(parameters, model, functions, group, span)


def load_language(
    directory: str | os.PathLike[str],
    group: Group,
    *,
    dtype: str | None = None,
    device: torch.device | str = "cpu",
) -> LanguageShard:
    """Return this rank's part of a language model, alone or of a model with an encoder."""
    with opened(directory) as (weights, source):
        planner = language_planner(weights, size_of(group), dtype)
        functions = runnable_functions(weights)
        planned = planner.rank(rank_of(group))
        parameters = _read(planned, source, device)
    model = planner.family.model
    assert isinstance(model, LanguageModel)
    return LanguageShard(parameters, model, functions, group, planned.layers)


def _read(
    planned: RankWeights,
    source: TensorSource,
    device: torch.device | str,
    arithmetic: torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    return {
        name: read_parameter(parameter, source).to(device, arithmetic)
        for name, parameter in planned.parameters.items()
    }


_residents: dict[str, tuple[LanguageShard, object]] = {}
"""Models on this rank, with the world in which the group of each was made."""


def resident(name: str, load: Callable[[], LanguageShard]) -> LanguageShard:
    """Return a model, loaded again if its world has ended. Collective."""
    if name not in _residents or _residents[name][1] is not dist.group.WORLD:
        release(name)
        _residents[name] = (load(), dist.group.WORLD)
    return _residents[name][0]


def release(name: str) -> None:
    """Forget a model."""
    _residents.pop(name, None)
