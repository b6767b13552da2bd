"""What ranks will execute, decided before running, as frozen data."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.extras.strategies.exchanges import StrategyPlan as StrategyPlan
    from mimokit.extras.strategies.exchanges import plan_strategy as plan_strategy
    from mimokit.planning.batch_config import (
        validate_heterogeneous_batch_config as validate_heterogeneous_batch_config,
    )
    from mimokit.planning.bridges.plan import plan_disjoint_bridge as plan_disjoint_bridge
    from mimokit.planning.layout import ConfigSource as ConfigSource
    from mimokit.planning.layout import plan_layout as plan_layout
    from mimokit.planning.pipeline import PipelinePlan as PipelinePlan
    from mimokit.planning.ranks import ModuleRanks as ModuleRanks
    from mimokit.planning.ranks import RankGrid as RankGrid
    from mimokit.planning.types import BatchPlan as BatchPlan
    from mimokit.planning.types import ColocatedBridge as ColocatedBridge
    from mimokit.planning.types import DisjointBridge as DisjointBridge
    from mimokit.planning.types import LayoutPlan as LayoutPlan
    from mimokit.planning.types import ModuleBatch as ModuleBatch
    from mimokit.planning.types import SampleRange as SampleRange
    from mimokit.planning.types import Transfer as Transfer
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
