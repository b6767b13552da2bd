"""Frame parallel: which rank encodes which frame of a batch, and what travels for it.

It needs the sizes of the frames of a batch, so no plan of a layout can contain it. These are pure
functions, which every rank calls with the same gathered numbers.
"""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.planning.frames.cost import PATCHES as PATCHES
    from mimokit.planning.frames.cost import FrameCost as FrameCost
    from mimokit.planning.frames.forecast import PLANNERS as PLANNERS
    from mimokit.planning.frames.forecast import FrameForecast as FrameForecast
    from mimokit.planning.frames.forecast import FrameLinks as FrameLinks
    from mimokit.planning.frames.forecast import forecast_frames as forecast_frames
    from mimokit.planning.frames.forecast import lpt_balance as lpt_balance
    from mimokit.planning.frames.plan import FramePlan as FramePlan
    from mimokit.planning.frames.plan import plan_frames as plan_frames
    from mimokit.planning.frames.routing import FrameRoutes as FrameRoutes
    from mimokit.planning.frames.routing import FrameSettings as FrameSettings
    from mimokit.planning.frames.routing import route_frames as route_frames
    from mimokit.planning.frames.samples import SampleWork as SampleWork
    from mimokit.planning.frames.samples import order_samples as order_samples
    from mimokit.planning.frames.samples import slowest as slowest
    from mimokit.planning.frames.work import SampleCosts as SampleCosts
    from mimokit.planning.frames.work import SampleSizes as SampleSizes
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
