"""What will happen: every decision that can be made before running, as frozen data.

The package is callable: `mimokit.plan(config)` is `mimokit.plan.plan(config)`.
"""

import sys
from types import ModuleType

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

__all__ = [
    "BatchPlan",
    "ColocatedBridge",
    "ConfigSource",
    "DisjointBridge",
    "LayoutPlan",
    "ModuleBatch",
    "PipelinePlan",
    "RankGrid",
    "RankMap",
    "SampleRange",
    "Transfer",
    "plan",
    "plan_disjoint_bridge",
    "validate_heterogeneous_batch_config",
]


class _CallablePackage(ModuleType):
    """A package that is also the function of its name."""

    def __call__(self, config: ConfigSource, world_size: int | None = None) -> LayoutPlan:
        """Return `plan(config, world_size)`."""
        return plan(config, world_size)


sys.modules[__name__].__class__ = _CallablePackage
