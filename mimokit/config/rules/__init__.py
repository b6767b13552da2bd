"""The rules that a config must follow. Each file yields the problems of one subject."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mimokit.config.base import world_check
from mimokit.config.errors import Problem, refuse_if_any
from mimokit.config.rules.combinations import combination_problems
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.data_rules import data_problems
from mimokit.config.rules.graph_rules import graph_problems, name_problems
from mimokit.config.rules.network_rules import network_problems
from mimokit.config.rules.ranks import mode_problems
from mimokit.config.rules.roles import role_problems
from mimokit.config.rules.runtime_rules import runtime_problems
from mimokit.config.rules.sharding import sharding_problems

if TYPE_CHECKING:
    from mimokit.config.experiment import ExperimentConfig, MimoParallelismConfig

__all__ = ["ValidationContext", "all_problems", "check_experiment", "check_model"]


def all_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield everything that is wrong with a config."""
    yield from name_problems(context)
    yield from graph_problems(context)
    yield from mode_problems(context)
    yield from network_problems(context)
    yield from role_problems(context)
    yield from combination_problems(context)
    yield from sharding_problems(context)
    yield from data_problems(context)
    yield from runtime_problems(context)


def check_model(model: MimoParallelismConfig, world_size: int | None = None) -> None:
    """Check the model section alone; raise `ConfigError` with all its problems."""
    refuse_if_any(all_problems(ValidationContext(model, world_size=world_size)))


def check_experiment(config: ExperimentConfig, world_size: int | None = None) -> None:
    """Check a whole config, unless it has passed the same check since it was changed.

    Raises:
        ConfigError: all its problems.
    """
    check = world_check(world_size)
    if config.has_passed(check):
        return
    refuse_if_any(all_problems(ValidationContext.of(config, world_size)))
    config.mark_passed([check])
