"""mimokit: plan, run, prove and understand parallel layouts of multi-module models.

Names are loaded when they are first used, so that `import mimokit` is quick everywhere.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mimokit.architecture import from_hf, load_model
    from mimokit.architecture.parallel_sizes import ParallelSizes
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
    from mimokit.layout_search import Constraints, search
    from mimokit.planning.layout import plan as plan
    from mimokit.prediction import EncoderInput, Layout, Workload, predict
    from mimokit.prediction.hardware import load_hardware

_HOMES = {
    "ConfigError": "mimokit.config",
    "Constraints": "mimokit.layout_search",
    "DataConfig": "mimokit.config",
    "EncoderInput": "mimokit.prediction",
    "ExperimentConfig": "mimokit.config",
    "Layout": "mimokit.prediction",
    "MimoParallelismConfig": "mimokit.config",
    "ModuleArchitecture": "mimokit.config",
    "ModuleParallelismConfig": "mimokit.config",
    "ParallelSizes": "mimokit.architecture.parallel_sizes",
    "RuntimeConfig": "mimokit.config",
    "Workload": "mimokit.prediction",
    "calibrate": "mimokit.experiment.calibration",
    "check_runnable": "mimokit.config",
    "from_hf": "mimokit.architecture",
    "load_experiment_config": "mimokit.config",
    "load_hardware": "mimokit.prediction.hardware",
    "load_model": "mimokit.architecture",
    "load_preset": "mimokit.config",
    "plan": "mimokit.planning",
    "predict": "mimokit.prediction",
    "preset_names": "mimokit.config",
    "search": "mimokit.layout_search",
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

_ROOMS = (
    "analysis",
    "architecture",
    "charts",
    "cli",
    "cluster",
    "config",
    "engine",
    "experiment",
    "interop",
    "layout_search",
    "planning",
    "prediction",
)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return import_module(f"mimokit.{name}")
    raise AttributeError(f"module 'mimokit' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
