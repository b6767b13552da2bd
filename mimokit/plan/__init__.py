"""What will happen: every decision that can be made before running, as frozen data.

The package is callable: `mimokit.plan(config)` is `mimokit.plan.plan(config)`. What predicts is
loaded when it is first asked for.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mimokit.plan.batch import validate_heterogeneous_batch_config
from mimokit.plan.disjoint_bridge import plan_disjoint_bridge
from mimokit.plan.layout import ConfigSource, plan
from mimokit.plan.pipeline import PipelinePlan
from mimokit.plan.rank_grid import RankGrid
from mimokit.plan.rank_map import RankMap
from mimokit.plan.types import (
    BatchPlan,
    ColocatedBridge,
    DisjointBridge,
    LayoutPlan,
    ModuleBatch,
    SampleRange,
    Transfer,
)

if TYPE_CHECKING:
    from mimokit.plan.hardware import hardware_names, load_hardware, save_hardware
    from mimokit.plan.prediction import EncoderInput, Layout, Prediction, Workload, predict

_HOMES = {
    "EncoderInput": "prediction",
    "Layout": "prediction",
    "Prediction": "prediction",
    "Workload": "prediction",
    "hardware_names": "hardware",
    "load_hardware": "hardware",
    "predict": "prediction",
    "save_hardware": "hardware",
}

__all__ = [
    "BatchPlan",
    "ColocatedBridge",
    "ConfigSource",
    "DisjointBridge",
    "EncoderInput",
    "Layout",
    "LayoutPlan",
    "ModuleBatch",
    "PipelinePlan",
    "Prediction",
    "RankGrid",
    "RankMap",
    "SampleRange",
    "Transfer",
    "Workload",
    "hardware_names",
    "load_hardware",
    "plan",
    "plan_disjoint_bridge",
    "predict",
    "save_hardware",
    "validate_heterogeneous_batch_config",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


class _CallablePackage(ModuleType):
    """A package that is also the function of its name."""

    def __call__(self, config: ConfigSource, world_size: int | None = None) -> LayoutPlan:
        """Return `plan(config, world_size)`."""
        return plan(config, world_size)


sys.modules[__name__].__class__ = _CallablePackage
