"""How long a step takes where ranks share the cores of one machine: mimokit's own engine, here."""

from mimokit.plan.shared_cores.costs import CoreCosts, SharedCosts
from mimokit.plan.shared_cores.held import Holding, rank_holdings
from mimokit.plan.shared_cores.prediction import SharedPrediction, predict_shared
from mimokit.plan.shared_cores.sharing import SharedRun, Span, run_shared

__all__ = [
    "CoreCosts",
    "Holding",
    "SharedCosts",
    "SharedPrediction",
    "SharedRun",
    "Span",
    "predict_shared",
    "rank_holdings",
    "run_shared",
]
