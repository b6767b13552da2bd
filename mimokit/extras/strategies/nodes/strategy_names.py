"""Strategies by the names that config files have for them."""

from collections.abc import Mapping
from typing import Any

from mimokit.config.errors import unknown_name
from mimokit.config.strategy import StrategyName
from mimokit.extras.strategies.nodes.averaging import FedAvgStrategy, NoLoCoStrategy
from mimokit.extras.strategies.nodes.demo import DeMoStrategy
from mimokit.extras.strategies.nodes.diloco import (
    DiLoCoStrategy,
    SPARTADiLoCoStrategy,
    StreamingDiLoCoStrategy,
)
from mimokit.extras.strategies.nodes.sparse_loco import SparseLoCoStrategy
from mimokit.extras.strategies.nodes.sparta import SPARTAStrategy
from mimokit.extras.strategies.nodes.strategy import SimpleReduceStrategy, Strategy

STRATEGIES: Mapping[StrategyName, type[Strategy]] = {
    "simple_reduce": SimpleReduceStrategy,
    "fedavg": FedAvgStrategy,
    "sparta": SPARTAStrategy,
    "diloco": DiLoCoStrategy,
    "sparta_diloco": SPARTADiLoCoStrategy,
    "demo": DeMoStrategy,
    "streaming_diloco": StreamingDiLoCoStrategy,
    "noloco": NoLoCoStrategy,
    "sparse_loco": SparseLoCoStrategy,
}


def strategy_named(name: str, **arguments: Any) -> Strategy:
    """Return a strategy by its name in a config file, or by that of its class.

    Raises:
        ConfigError: the strategy does not exist; the message offers the nearest name.
        UnknownArgumentError: it has no such argument; names the right one.
    """
    classes = {strategy.__name__: strategy for strategy in STRATEGIES.values()}
    kind = STRATEGIES.get(name) or classes.get(name)  # type: ignore[call-overload]
    if kind is None:
        raise unknown_name("Strategy", name, STRATEGIES)
    strategy: Strategy = kind(**arguments)
    return strategy
