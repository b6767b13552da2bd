"""Memory and step time of a whole model in a layout, and time of strategies on a network."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.extras.strategies.network import Network as Network
    from mimokit.extras.strategies.network import StrategyPrediction as StrategyPrediction
    from mimokit.extras.strategies.network import StrategyTimeline as StrategyTimeline
    from mimokit.extras.strategies.network import predict_strategy as predict_strategy
    from mimokit.extras.strategies.network import strategy_timeline as strategy_timeline
    from mimokit.prediction.advice import advise as advise
    from mimokit.prediction.deployment_modes import LayoutCost as LayoutCost
    from mimokit.prediction.layout import Layout as Layout
    from mimokit.prediction.link import Link as Link
    from mimokit.prediction.prediction import costs_of as costs_of
    from mimokit.prediction.prediction import layout_cost as layout_cost
    from mimokit.prediction.prediction import predict as predict
    from mimokit.prediction.result import Prediction as Prediction
    from mimokit.prediction.step_time.breakdown import PART_WORDS as PART_WORDS
    from mimokit.prediction.timeline import Block as Block
    from mimokit.prediction.timeline import PredictedTimeline as PredictedTimeline
    from mimokit.prediction.timeline import predict_timeline as predict_timeline
    from mimokit.prediction.weights_memory import checkpoint_memory as checkpoint_memory
    from mimokit.prediction.workload import EncoderInput as EncoderInput
    from mimokit.prediction.workload import Workload as Workload
    from mimokit.prediction.workload import step_flops as step_flops
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
