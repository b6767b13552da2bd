"""Memory and step time of a whole model in a layout, in all three deployment modes."""

from mimokit.prediction.deployment_modes import Outcome
from mimokit.prediction.layout import Layout
from mimokit.prediction.prediction import Prediction, outcome_of, predict, terms_of
from mimokit.prediction.timeline import Block, PredictedTimeline, predict_timeline
from mimokit.prediction.workload import EncoderInput, Workload, step_flops

__all__ = [
    "Block",
    "EncoderInput",
    "Layout",
    "Outcome",
    "PredictedTimeline",
    "Prediction",
    "Workload",
    "outcome_of",
    "predict",
    "predict_timeline",
    "step_flops",
    "terms_of",
]
