"""Predicted step time of mimokit's own engine, with ranks that share the cores of one machine."""

from mimokit.prediction.local_cpu.cost_model import CoreCosts, SharedCosts
from mimokit.prediction.local_cpu.prediction import SharedPrediction, predict_shared
from mimokit.prediction.local_cpu.simulator import RankSpan, SharedRun, Span, run_shared
from mimokit.prediction.local_cpu.step_costs import Stored, stored_on_rank

__all__ = [
    "CoreCosts",
    "RankSpan",
    "SharedCosts",
    "SharedPrediction",
    "SharedRun",
    "Span",
    "Stored",
    "predict_shared",
    "run_shared",
    "stored_on_rank",
]
