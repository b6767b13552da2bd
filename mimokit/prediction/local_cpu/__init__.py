"""How long a step takes where ranks share the cores of one machine: mimokit's own engine, here."""

from mimokit.prediction.local_cpu.cost_model import CoreCosts, SharedCosts
from mimokit.prediction.local_cpu.held import Holding, rank_holdings
from mimokit.prediction.local_cpu.prediction import SharedPrediction, predict_shared
from mimokit.prediction.local_cpu.simulator import RankSpan, SharedRun, Span, run_shared

__all__ = [
    "CoreCosts",
    "Holding",
    "RankSpan",
    "SharedCosts",
    "SharedPrediction",
    "SharedRun",
    "Span",
    "predict_shared",
    "rank_holdings",
    "run_shared",
]
