"""Pure functions, a plan or a table in, an altair chart out.

The first chart makes charts show without a network (see `mimokit.charts.renderer`); until then
altair is not imported, so that the palette costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mimokit.charts.accuracy_curve import accuracy
    from mimokit.charts.batch_bars import batch_split
    from mimokit.charts.loss_curve import loss
    from mimokit.charts.pareto_points import pareto
    from mimokit.charts.phase_bars import phases
    from mimokit.charts.predicted_step import step_parts
    from mimokit.charts.prediction_bars import predicted_phases
    from mimokit.charts.rank_cells import rank_map
    from mimokit.charts.rank_memory import memory_bars
    from mimokit.charts.run_picture import training
    from mimokit.charts.speed import throughput
    from mimokit.charts.stage_bars import pipeline_timeline
    from mimokit.charts.step_heat import step_times
    from mimokit.charts.trace_bars import trace_over_prediction, trace_timeline

__all__ = [
    "accuracy",
    "batch_split",
    "loss",
    "memory_bars",
    "pareto",
    "phases",
    "pipeline_timeline",
    "predicted_phases",
    "rank_map",
    "step_parts",
    "step_times",
    "throughput",
    "trace_over_prediction",
    "trace_timeline",
    "training",
]

_HOMES = {
    "accuracy": "accuracy_curve",
    "batch_split": "batch_bars",
    "loss": "loss_curve",
    "memory_bars": "rank_memory",
    "pareto": "pareto_points",
    "phases": "phase_bars",
    "pipeline_timeline": "stage_bars",
    "predicted_phases": "prediction_bars",
    "rank_map": "rank_cells",
    "step_parts": "predicted_step",
    "step_times": "step_heat",
    "throughput": "speed",
    "trace_over_prediction": "trace_bars",
    "trace_timeline": "trace_bars",
    "training": "run_picture",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module(f"{__name__}.renderer").enable()
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
