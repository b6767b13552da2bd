"""Predicted step time of mimokit's own engine, with ranks that share the cores of one machine."""

from mimokit.prediction.local_cpu.prediction import SharedPrediction, predict_shared
from mimokit.prediction.local_cpu.simulator import RankSpan, Span

__all__ = [
    "RankSpan",
    "SharedPrediction",
    "Span",
    "predict_shared",
]
