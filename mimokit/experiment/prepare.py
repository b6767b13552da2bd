"""From what a caller gives to a finalized config."""

from __future__ import annotations

import os
from typing import TypeAlias

from mimokit.config import ExperimentConfig, load_experiment_config

Config: TypeAlias = "ExperimentConfig | str | os.PathLike[str]"


def prepared(config: Config, world_size: int | None = None) -> ExperimentConfig:
    """Load a config if a path is given, and finalize it.

    Args:
        config: a config or the path of one; the object itself is not changed.
        world_size: ranks, None for as many as the modules need.

    Raises:
        ConfigError: all problems at once.
    """
    if not isinstance(config, ExperimentConfig):
        config = load_experiment_config(config)
    config = config.model_copy(deep=True)
    config.finalize(world_size)
    return config
