"""Frame parallel: which rank encodes which frame of a batch, and what travels for it.

It needs the sizes of the frames of a batch, so no plan of a layout can contain it. These are pure
functions, which every rank calls with the same gathered numbers.
"""

from mimokit.planning.frames.cost import PATCHES, FrameCost, fit_cost
from mimokit.planning.frames.forecast import PLANNERS, FrameForecast, FrameLinks, forecast_frames
from mimokit.planning.frames.plan import FramePlan, lpt_balance, plan_frames
from mimokit.planning.frames.routing import FrameRoutes, FrameSettings, route_frames
from mimokit.planning.frames.samples import SampleWork, order_samples, slowest
from mimokit.planning.frames.work import SampleCosts, SampleSizes

__all__ = [
    "PATCHES",
    "PLANNERS",
    "FrameCost",
    "FrameForecast",
    "FrameLinks",
    "FramePlan",
    "FrameRoutes",
    "FrameSettings",
    "SampleCosts",
    "SampleSizes",
    "SampleWork",
    "fit_cost",
    "forecast_frames",
    "lpt_balance",
    "order_samples",
    "plan_frames",
    "route_frames",
    "slowest",
]
