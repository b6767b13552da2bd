"""Pure functions, a plan or a table in, an altair chart out.

The first chart makes charts show without a network (see `mimokit.charts._renderer`); until then
altair is not imported, so that the palette costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mimokit.charts._accuracy import accuracy
    from mimokit.charts._batch_split import batch_split
    from mimokit.charts._loss import loss
    from mimokit.charts._memory_bars import memory_bars
    from mimokit.charts._pareto import pareto
    from mimokit.charts._phases import phases
    from mimokit.charts._pipeline_timeline import pipeline_timeline
    from mimokit.charts._predicted_phases import predicted_phases
    from mimokit.charts._rank_map import rank_map
    from mimokit.charts._step_parts import step_parts
    from mimokit.charts._step_times import step_times
    from mimokit.charts._throughput import throughput
    from mimokit.charts._trace import trace_over_prediction, trace_timeline
    from mimokit.charts._training import training

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
    "accuracy": "_accuracy",
    "batch_split": "_batch_split",
    "loss": "_loss",
    "memory_bars": "_memory_bars",
    "pareto": "_pareto",
    "phases": "_phases",
    "pipeline_timeline": "_pipeline_timeline",
    "predicted_phases": "_predicted_phases",
    "rank_map": "_rank_map",
    "step_parts": "_step_parts",
    "step_times": "_step_times",
    "throughput": "_throughput",
    "trace_over_prediction": "_trace",
    "trace_timeline": "_trace",
    "training": "_training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module(f"{__name__}._renderer").enable()
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
