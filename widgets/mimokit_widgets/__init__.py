"""Notebook views of mimokit.

Names are loaded when they are first used, so that running a notebook from the command line does
not wait for widgets.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mimokit_widgets.batch_split import BatchSplit
    from mimokit_widgets.layout_planner import LayoutPlanner
    from mimokit_widgets.live_monitor import LiveMonitor
    from mimokit_widgets.pareto_view import ParetoView
    from mimokit_widgets.rank_map import RankMap
    from mimokit_widgets.stepper import StepperView, show_step
    from mimokit_widgets.strips import show_strips
    from mimokit_widgets.traffic_map import TrafficMap

__all__ = [
    "BatchSplit",
    "LayoutPlanner",
    "LiveMonitor",
    "ParetoView",
    "RankMap",
    "StepperView",
    "TrafficMap",
    "show_step",
    "show_strips",
]

_HOMES = {
    "BatchSplit": "batch_split",
    "LayoutPlanner": "layout_planner",
    "LiveMonitor": "live_monitor",
    "ParetoView": "pareto_view",
    "RankMap": "rank_map",
    "StepperView": "stepper",
    "TrafficMap": "traffic_map",
    "show_step": "stepper",
    "show_strips": "strips",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'mimokit_widgets' has no attribute '{name}'")
