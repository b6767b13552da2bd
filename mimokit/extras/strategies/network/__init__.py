"""Time of infrequent exchanges on given links: rounds, waiting, and who does what when."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.extras.strategies.network.network import Network as Network
    from mimokit.extras.strategies.network.strategy import StrategyPrediction as StrategyPrediction
    from mimokit.extras.strategies.network.strategy import predict_strategy as predict_strategy
    from mimokit.extras.strategies.network.timeline import NodeBlock as NodeBlock
    from mimokit.extras.strategies.network.timeline import StrategyTimeline as StrategyTimeline
    from mimokit.extras.strategies.network.timeline import strategy_timeline as strategy_timeline
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
