"""What ranks will execute, decided before running, as frozen data."""

from mimokit.planning.bridges.plan import plan_disjoint_bridge
from mimokit.planning.layout import ConfigSource, plan_layout, validate_heterogeneous_batch_config
from mimokit.planning.pipeline import PipelinePlan
from mimokit.planning.ranks import ModuleRanks, RankGrid
from mimokit.planning.strategies import StrategyPlan, plan_strategy
from mimokit.planning.types import (
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
    "ModuleRanks",
    "PipelinePlan",
    "RankGrid",
    "SampleRange",
    "StrategyPlan",
    "Transfer",
    "plan_disjoint_bridge",
    "plan_layout",
    "plan_strategy",
    "validate_heterogeneous_batch_config",
]
