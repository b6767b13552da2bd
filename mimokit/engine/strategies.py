"""Strategies of infrequent communication between nodes, in plain torch.

Strategies execute a `StrategyPlan`, which every node makes from the same arguments; nothing is sent
to agree on it.
"""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.extras.strategies.nodes import communicate as communicate
    from mimokit.extras.strategies.nodes.averaging import FedAvgStrategy as FedAvgStrategy
    from mimokit.extras.strategies.nodes.averaging import NoLoCoStrategy as NoLoCoStrategy
    from mimokit.extras.strategies.nodes.communicate import all_gather as all_gather
    from mimokit.extras.strategies.nodes.communicate import all_reduce as all_reduce
    from mimokit.extras.strategies.nodes.communicate import broadcast as broadcast
    from mimokit.extras.strategies.nodes.demo import DeMoStrategy as DeMoStrategy
    from mimokit.extras.strategies.nodes.diloco import DiLoCoStrategy as DiLoCoStrategy
    from mimokit.extras.strategies.nodes.diloco import SPARTADiLoCoStrategy as SPARTADiLoCoStrategy
    from mimokit.extras.strategies.nodes.diloco import (
        StreamingDiLoCoStrategy as StreamingDiLoCoStrategy,
    )
    from mimokit.extras.strategies.nodes.metrics import log_metrics as log_metrics
    from mimokit.extras.strategies.nodes.modules import (
        CommunicateOptimizeStrategy as CommunicateOptimizeStrategy,
    )
    from mimokit.extras.strategies.nodes.modules import CommunicationModule as CommunicationModule
    from mimokit.extras.strategies.nodes.optim import OptimSpec as OptimSpec
    from mimokit.extras.strategies.nodes.optim import ensure_optim_spec as ensure_optim_spec
    from mimokit.extras.strategies.nodes.sparse_loco import SparseLoCoStrategy as SparseLoCoStrategy
    from mimokit.extras.strategies.nodes.sparta import IndexSelector as IndexSelector
    from mimokit.extras.strategies.nodes.sparta import (
        PartitionedIndexSelector as PartitionedIndexSelector,
    )
    from mimokit.extras.strategies.nodes.sparta import RandomIndexSelector as RandomIndexSelector
    from mimokit.extras.strategies.nodes.sparta import (
        ShuffledSequentialIndexSelector as ShuffledSequentialIndexSelector,
    )
    from mimokit.extras.strategies.nodes.sparta import SPARTAStrategy as SPARTAStrategy
    from mimokit.extras.strategies.nodes.strategy import (
        SimpleReduceStrategy as SimpleReduceStrategy,
    )
    from mimokit.extras.strategies.nodes.strategy import Strategy as Strategy
    from mimokit.extras.strategies.nodes.strategy import (
        UnknownArgumentError as UnknownArgumentError,
    )
    from mimokit.extras.strategies.nodes.strategy_names import STRATEGIES as STRATEGIES
    from mimokit.extras.strategies.nodes.strategy_names import strategy_named as strategy_named
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
