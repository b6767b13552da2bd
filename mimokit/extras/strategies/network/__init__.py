"""Time of infrequent exchanges on given links: rounds, waiting, and who does what when."""

from mimokit.extras.strategies.network.network import Network
from mimokit.extras.strategies.network.strategy import (
    StrategyPrediction,
    predict_strategy,
)
from mimokit.extras.strategies.network.timeline import (
    NodeBlock,
    StrategyTimeline,
    strategy_timeline,
)

__all__ = [
    "Network",
    "NodeBlock",
    "StrategyPrediction",
    "StrategyTimeline",
    "predict_strategy",
    "strategy_timeline",
]
