"""Strategies of infrequent communication between nodes, in plain torch.

Strategies execute a `StrategyPlan`, which every node makes from the same arguments; nothing is sent
to agree on it.
"""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.engine.strategies import communicate as communicate
    from mimokit.engine.strategies.averaging import FedAvgStrategy as FedAvgStrategy
    from mimokit.engine.strategies.averaging import NoLoCoStrategy as NoLoCoStrategy
    from mimokit.engine.strategies.communicate import all_gather as all_gather
    from mimokit.engine.strategies.communicate import all_reduce as all_reduce
    from mimokit.engine.strategies.communicate import broadcast as broadcast
    from mimokit.engine.strategies.demo import DeMoStrategy as DeMoStrategy
    from mimokit.engine.strategies.diloco import DiLoCoStrategy as DiLoCoStrategy
    from mimokit.engine.strategies.diloco import SPARTADiLoCoStrategy as SPARTADiLoCoStrategy
    from mimokit.engine.strategies.diloco import StreamingDiLoCoStrategy as StreamingDiLoCoStrategy
    from mimokit.engine.strategies.metrics import log_metrics as log_metrics
    from mimokit.engine.strategies.modules import (
        CommunicateOptimizeStrategy as CommunicateOptimizeStrategy,
    )
    from mimokit.engine.strategies.modules import CommunicationModule as CommunicationModule
    from mimokit.engine.strategies.named import STRATEGIES as STRATEGIES
    from mimokit.engine.strategies.named import strategy_named as strategy_named
    from mimokit.engine.strategies.optim import OptimSpec as OptimSpec
    from mimokit.engine.strategies.optim import ensure_optim_spec as ensure_optim_spec
    from mimokit.engine.strategies.sparse_loco import SparseLoCoStrategy as SparseLoCoStrategy
    from mimokit.engine.strategies.sparta import IndexSelector as IndexSelector
    from mimokit.engine.strategies.sparta import (
        PartitionedIndexSelector as PartitionedIndexSelector,
    )
    from mimokit.engine.strategies.sparta import RandomIndexSelector as RandomIndexSelector
    from mimokit.engine.strategies.sparta import (
        ShuffledSequentialIndexSelector as ShuffledSequentialIndexSelector,
    )
    from mimokit.engine.strategies.sparta import SPARTAStrategy as SPARTAStrategy
    from mimokit.engine.strategies.strategy import SimpleReduceStrategy as SimpleReduceStrategy
    from mimokit.engine.strategies.strategy import Strategy as Strategy
    from mimokit.engine.strategies.strategy import UnknownArgumentError as UnknownArgumentError
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
