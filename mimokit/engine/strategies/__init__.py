"""Strategies of infrequent communication between nodes: plain torch, one file per strategy.

Strategies execute a `StrategyPlan`, which every node makes from the same arguments; nothing is sent
to agree on it.
"""

from mimokit.engine.strategies import communicate
from mimokit.engine.strategies.communicate import all_gather, all_reduce, broadcast
from mimokit.engine.strategies.communicate_optimize_strategy import (
    CommunicateOptimizeStrategy,
    CommunicationModule,
)
from mimokit.engine.strategies.demo import DeMoStrategy
from mimokit.engine.strategies.diloco import DiLoCoStrategy
from mimokit.engine.strategies.federated_averaging import FedAvgStrategy
from mimokit.engine.strategies.index_selectors import (
    IndexSelector,
    PartitionedIndexSelector,
    RandomIndexSelector,
    ShuffledSequentialIndexSelector,
)
from mimokit.engine.strategies.metrics import log_metrics
from mimokit.engine.strategies.named import STRATEGIES, strategy_named
from mimokit.engine.strategies.noloco import NoLoCoStrategy
from mimokit.engine.strategies.optim import OptimSpec, ensure_optim_spec
from mimokit.engine.strategies.sparse_loco import SparseLoCoStrategy
from mimokit.engine.strategies.sparta import SPARTAStrategy
from mimokit.engine.strategies.sparta_diloco import SPARTADiLoCoStrategy
from mimokit.engine.strategies.strategy import SimpleReduceStrategy, Strategy, UnknownArgumentError
from mimokit.engine.strategies.streaming_diloco import StreamingDiLoCoStrategy

__all__ = [
    "STRATEGIES",
    "CommunicateOptimizeStrategy",
    "CommunicationModule",
    "DeMoStrategy",
    "DiLoCoStrategy",
    "FedAvgStrategy",
    "IndexSelector",
    "NoLoCoStrategy",
    "OptimSpec",
    "PartitionedIndexSelector",
    "RandomIndexSelector",
    "SPARTADiLoCoStrategy",
    "SPARTAStrategy",
    "ShuffledSequentialIndexSelector",
    "SimpleReduceStrategy",
    "SparseLoCoStrategy",
    "Strategy",
    "StreamingDiLoCoStrategy",
    "UnknownArgumentError",
    "all_gather",
    "all_reduce",
    "broadcast",
    "communicate",
    "ensure_optim_spec",
    "log_metrics",
    "strategy_named",
]
