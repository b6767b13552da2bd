"""From a layout that a search found to the sections of a planner."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mimokit.config import ConfigError, ExperimentConfig

if TYPE_CHECKING:
    from mimokit.plan.prediction import Layout
    from mimokit.plan.search import SearchTask


def same_task(config: ExperimentConfig, task: SearchTask) -> bool:
    """Return whether a config, every data_parallel known, has the model and step of a search."""
    from mimokit.plan.architecture.from_config import model_of_config
    from mimokit.plan.exchange import workload_of_config

    try:
        model, workload = model_of_config(config.model), workload_of_config(config)
    except ConfigError:
        return False
    return replace(model, name="") == replace(task.model, name="") and workload == task.workload


def config_with(
    layout: Layout, task: SearchTask, *configs: ExperimentConfig | None
) -> ExperimentConfig:
    """Return a config with a layout that a search found.

    Args:
        layout: what was found.
        task: what was asked.
        configs: the first that describes what was searched keeps all but its layout; where none
            does, the config says what the search knew.

    Raises:
        ConfigError: no config has such a layout.
    """
    from mimokit.plan.exchange import config_of_layout

    kept = next((one for one in configs if one is not None and same_task(one, task)), None)
    model = None if kept is not None else task.model
    return config_of_layout(layout, task.workload, model=model, experiment=kept)
