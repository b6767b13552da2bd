"""Notebook views of mimokit.

Names are loaded when they are first used, so that running a notebook from the command line does
not wait for widgets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit_widgets.culprit import show_culprit as show_culprit
    from mimokit_widgets.frame_balance import FrameBalance as FrameBalance
    from mimokit_widgets.layout_planner import LayoutPlanner as LayoutPlanner
    from mimokit_widgets.live_monitor import LiveMonitor as LiveMonitor
    from mimokit_widgets.pareto_view import ParetoView as ParetoView
    from mimokit_widgets.plan_views import BatchSplit as BatchSplit
    from mimokit_widgets.plan_views import RankMap as RankMap
    from mimokit_widgets.plan_views import TrafficMap as TrafficMap
    from mimokit_widgets.runs_view import RunsView as RunsView
    from mimokit_widgets.schedule_view import ScheduleView as ScheduleView
    from mimokit_widgets.stepper import StepperView as StepperView
    from mimokit_widgets.stepper import show_step as show_step
    from mimokit_widgets.strips import show_strips as show_strips
    from mimokit_widgets.sweep_monitor import SweepMonitor as SweepMonitor
    from mimokit_widgets.timeline_view import TimelineView as TimelineView
    from mimokit_widgets.weight_map import WeightMap as WeightMap
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
