"""Loads the part of a network that one rank computes, and keeps models between calls."""

import os
from collections.abc import Callable

import torch
import torch.distributed as dist

from mimokit.architecture.modules import LanguageModel
from mimokit.engine.weights import opened, read_parameter
from mimokit.extras.generation.network.exchange import Group, rank_of, size_of
from mimokit.extras.generation.network.language import LanguageShard
from mimokit.extras.generation.prompts import check_network
from mimokit.planning.weights import language_planner


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
        check_network(weights)
        parameters = {
            name: read_parameter(parameter, source).to(device)
            for name, parameter in planner.rank(rank_of(group)).parameters.items()
        }
    model = planner.family.model
    assert isinstance(model, LanguageModel)
    return LanguageShard(parameters, model, group)


_residents: dict[str, tuple[LanguageShard, object]] = {}
"""Models on this rank, with the world in which the group of each was made."""


def resident(name: str, load: Callable[[], LanguageShard]) -> LanguageShard:
    """Return a model, loaded again if its world has ended. Collective."""
    if name not in _residents or _residents[name][1] is not dist.group.WORLD:
        forget_model(name)
        _residents[name] = (load(), dist.group.WORLD)
    return _residents[name][0]


def forget_model(name: str) -> None:
    """Forget a model."""
    _residents.pop(name, None)
