"""Loads the part of a network that one rank computes, from the files of a checkpoint,
and keeps models between the calls of their owner."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from mimokit.architecture.modules import LanguageModel, MultimodalModel, VisionEncoder
from mimokit.engine.inference.exchange import Group, rank_of, size_of
from mimokit.engine.inference.language import LanguageShard
from mimokit.engine.inference.vision import LlavaShard, TowerShard
from mimokit.engine.weights.files import TensorSource, opened
from mimokit.engine.weights.reading import read_parameter
from mimokit.planning.weights import RankWeights, WeightPlanner
from mimokit.planning.weights.running import (
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
    with opened(directory) as (checkpoint, source):
        planner = WeightPlanner(checkpoint, size_of(group), pipeline_parallel, dtype)
        functions = runnable_functions(checkpoint)
        planned = planner.rank(planner.grid.rank(tp=rank_of(group), pp=pipeline_rank))
        parameters = _read(planned, source, device, arithmetic)
    model = planner.family.model
    if isinstance(model, LanguageModel):
        return LanguageShard(parameters, model, functions, group, planned.layers)
    if isinstance(model, MultimodalModel):
        tower = runnable_tower_functions(checkpoint)
        return LlavaShard(parameters, model, functions, tower, group, planned.layers)
    assert isinstance(model, VisionEncoder)
    return TowerShard(parameters, model, functions, group, planned.layers)


def load_language(
    directory: str | os.PathLike[str],
    group: Group,
    *,
    dtype: str | None = None,
    device: torch.device | str = "cpu",
) -> LanguageShard:
    """Return what this rank computes of a language model, or of that in a LLaVA.

    Arguments are as of `load_shard`.

    Raises:
        ConfigError: likewise, or the checkpoint is of a tower.
    """
    with opened(directory) as (checkpoint, source):
        planner = language_planner(checkpoint, size_of(group), dtype)
        functions = runnable_functions(checkpoint)
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
        name: read_parameter(one, source).to(device, arithmetic)
        for name, one in planned.parameters.items()
    }


@dataclass(frozen=True)
class Resident:
    """A model on this rank.

    Attributes:
        world: in which its group was made.
    """

    shard: LanguageShard
    world: object


_residents: dict[str, Resident] = {}


def resident(name: str, load: Callable[[], LanguageShard]) -> LanguageShard:
    """Return a model, loaded again if its world has ended. Collective."""
    held = _residents.get(name)
    if held is None or held.world is not dist.group.WORLD:
        _residents.pop(name, None)
        held = _residents[name] = Resident(load(), dist.group.WORLD)
    return held.shard


def release(name: str) -> None:
    """Forget a model."""
    _residents.pop(name, None)
