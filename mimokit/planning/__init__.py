"""What ranks will execute, decided before running, as frozen data."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names
from mimokit.planning.bridges.plan import plan_disjoint_bridge
from mimokit.planning.layout import ConfigSource, plan_layout, validate_heterogeneous_batch_config
from mimokit.planning.pipeline import PipelinePlan
from mimokit.planning.ranks import ModuleRanks, RankGrid
from mimokit.planning.types import (
    BatchPlan,
    ColocatedBridge,
    DisjointBridge,
    LayoutPlan,
    ModuleBatch,
    SampleRange,
    Transfer,
)

if TYPE_CHECKING:
    from mimokit.extras.strategies.exchanges import StrategyPlan as StrategyPlan
    from mimokit.extras.strategies.exchanges import plan_strategy as plan_strategy

    _of_strategies: list[str]
else:
    __getattr__, __dir__, _of_strategies = lazy_names(__name__, __file__)

__all__ = [
    *_of_strategies,
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
    "Transfer",
    "plan_disjoint_bridge",
    "plan_layout",
    "validate_heterogeneous_batch_config",
]
