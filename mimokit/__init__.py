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
    from mimokit.experiment.calibration import calibrate
    from mimokit.plan.architecture import from_hf, load_model
    from mimokit.plan.hardware import load_hardware
    from mimokit.plan.layout import plan as plan
    from mimokit.plan.prediction import EncoderInput, Layout, Workload, predict
    from mimokit.plan.search import Constraints, search
    from mimokit.plan.sizes import ParallelSizes

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

_PLAN_NAMES = {
    "Constraints": "search",
    "EncoderInput": "prediction",
    "Layout": "prediction",
    "ParallelSizes": "sizes",
    "Workload": "prediction",
    "from_hf": "architecture",
    "load_hardware": "hardware",
    "load_model": "architecture",
    "predict": "prediction",
    "search": "search",
}

__all__ = [
    "ConfigError",
    "Constraints",
    "DataConfig",
    "EncoderInput",
    "ExperimentConfig",
    "Layout",
    "MimoParallelismConfig",
    "ModuleArchitecture",
    "ModuleParallelismConfig",
    "ParallelSizes",
    "RuntimeConfig",
    "Workload",
    "calibrate",
    "check_runnable",
    "from_hf",
    "load_experiment_config",
    "load_hardware",
    "load_model",
    "load_preset",
    "plan",
    "predict",
    "preset_names",
    "search",
]

_ROOMS = ("analysis", "charts", "cluster", "config", "engine", "experiment", "plan")


def __getattr__(name: str) -> Any:
    if name in _CONFIG_NAMES:
        return getattr(import_module("mimokit.config"), name)
    if name == "calibrate":
        return import_module("mimokit.experiment.calibration").calibrate
    if name in _PLAN_NAMES:
        return getattr(import_module(f"mimokit.plan.{_PLAN_NAMES[name]}"), name)
    if name in _ROOMS:
        return import_module(f"mimokit.{name}")
    raise AttributeError(f"module 'mimokit' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
