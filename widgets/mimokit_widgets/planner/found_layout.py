"""From a layout that a search found to the sections of a planner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from mimokit.config import ConfigError, ExperimentConfig, PredictionConfig

if TYPE_CHECKING:
    from mimokit.layout_search import SearchTask
    from mimokit.prediction import Layout


def same_task(config: ExperimentConfig, task: SearchTask) -> bool:
    """Return whether a config, every data_parallel known, has the model and step of a search."""
    from mimokit.architecture.from_config import model_of_config
    from mimokit.interop import workload_of_config

    try:
        model, workload = model_of_config(config.model), workload_of_config(config)
    except ConfigError:
        return False
    return replace(model, name="") == replace(task.model, name="") and workload == task.workload


def config_with(
    layout: Layout, task: SearchTask, supposed: PredictionConfig, *configs: ExperimentConfig | None
) -> ExperimentConfig:
    """Return a config with a layout that a search found.

    Args:
        supposed: what the planner supposes; where the search supposed something else, the config
            says that, so that what was found is what is predicted.
        configs: the first that describes what was searched keeps all but its layout; where none
            does, the config says what the search knew.

    Raises:
        ConfigError: no config has such a layout.
    """
    from mimokit.interop import config_of_layout

    kept = next(
        (config for config in configs if config is not None and same_task(config, task)), None
    )
    model = None if kept is not None else task.model
    return config_of_layout(
        layout,
        task.workload,
        model=model,
        experiment=kept,
        supposed=_otherwise_supposed(task, supposed),
    )


def _otherwise_supposed(task: SearchTask, supposed: PredictionConfig) -> dict[str, object]:
    from mimokit.prediction.hardware import hardware_names, load_hardware
    from mimokit.prediction.step_time import load_software, software_names

    other: dict[str, object] = {}
    if not _is(supposed.chosen_gpu, task.hardware, load_hardware):
        other["gpu"] = next(
            (n for n in hardware_names() if load_hardware(n) == task.hardware), None
        )
    if not _is(supposed.chosen_software, task.software, load_software):
        names = software_names()
        other["software"] = next((n for n in names if load_software(n) == task.software), None)
    if task.price_per_gpu_hour != supposed.price_per_gpu_hour:
        other["price_per_gpu_hour"] = task.price_per_gpu_hour
    return other


def _is(name: str, known: object, load: Callable[[str], object]) -> bool:
    try:
        return load(name) == known
    except ConfigError:
        return False
