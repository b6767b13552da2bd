"""Time of infrequent exchanges on given links: rounds, waiting, and who does what when."""

from mimokit.prediction.network.links import Link
from mimokit.prediction.network.network import Network
from mimokit.prediction.network.strategy import (
    StrategyPrediction,
    plan_of_size,
    predict_strategy,
)
from mimokit.prediction.network.timeline import NodeBlock, StrategyTimeline, strategy_timeline

__all__ = [
    "Link",
    "Network",
    "NodeBlock",
    "StrategyPrediction",
    "StrategyTimeline",
    "plan_of_size",
    "predict_strategy",
    "strategy_timeline",
]
