"""mimokit: plan, run, prove and understand parallel layouts of multi-module models.

Names are loaded when they are first used, so that `import mimokit` is quick everywhere.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mimokit.config import (
        ConfigError,
        DataConfig,
        ExperimentConfig,
        MimoParallelismConfig,
        ModuleArchitecture,
        ModuleParallelismConfig,
        RuntimeConfig,
        check_runnable,
        load_experiment_config,
        load_preset,
        preset_names,
    )
    from mimokit.plan.layout import plan as plan

_CONFIG_NAMES = (
    "ConfigError",
    "DataConfig",
    "ExperimentConfig",
    "MimoParallelismConfig",
    "ModuleArchitecture",
    "ModuleParallelismConfig",
    "RuntimeConfig",
    "check_runnable",
    "load_experiment_config",
    "load_preset",
    "preset_names",
)

__all__ = [
    "ConfigError",
    "DataConfig",
    "ExperimentConfig",
    "MimoParallelismConfig",
    "ModuleArchitecture",
    "ModuleParallelismConfig",
    "RuntimeConfig",
    "check_runnable",
    "load_experiment_config",
    "load_preset",
    "plan",
    "preset_names",
]

_ROOMS = ("analysis", "charts", "cluster", "config", "engine", "experiment", "plan")


def __getattr__(name: str) -> Any:
    if name in _CONFIG_NAMES:
        return getattr(import_module("mimokit.config"), name)
    if name in _ROOMS:
        return import_module(f"mimokit.{name}")
    raise AttributeError(f"module 'mimokit' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
