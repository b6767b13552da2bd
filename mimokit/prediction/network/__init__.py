"""Time of infrequent exchanges on given links: rounds, waiting, and who does what when."""

from mimokit.prediction.network.network import Link, Network
from mimokit.prediction.network.strategy import (
    StrategyPrediction,
    exchange_seconds_of_replicas,
    predict_strategy,
    waiting_seconds_of_replicas,
)
from mimokit.prediction.network.timeline import NodeBlock, StrategyTimeline, strategy_timeline

__all__ = [
    "Link",
    "Network",
    "NodeBlock",
    "StrategyPrediction",
    "StrategyTimeline",
    "exchange_seconds_of_replicas",
    "predict_strategy",
    "strategy_timeline",
    "waiting_seconds_of_replicas",
]
