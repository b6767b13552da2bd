"""Memory and step time of a whole model in a layout, and time of strategies on a network."""

from mimokit.prediction.advice import advise
from mimokit.prediction.deployment_modes import LayoutCost
from mimokit.prediction.layout import Layout
from mimokit.prediction.network import (
    Link,
    Network,
    StrategyPrediction,
    StrategyTimeline,
    predict_strategy,
    strategy_timeline,
)
from mimokit.prediction.prediction import costs_of, layout_cost, predict
from mimokit.prediction.result import Prediction
from mimokit.prediction.step_time.breakdown import PART_WORDS
from mimokit.prediction.timeline import Block, PredictedTimeline, predict_timeline
from mimokit.prediction.weights_memory import checkpoint_memory
from mimokit.prediction.workload import EncoderInput, Workload, step_flops

__all__ = [
    "PART_WORDS",
    "Block",
    "EncoderInput",
    "Layout",
    "LayoutCost",
    "Link",
    "Network",
    "PredictedTimeline",
    "Prediction",
    "StrategyPrediction",
    "StrategyTimeline",
    "Workload",
    "advise",
    "checkpoint_memory",
    "costs_of",
    "layout_cost",
    "predict",
    "predict_strategy",
    "predict_timeline",
    "step_flops",
    "strategy_timeline",
]
