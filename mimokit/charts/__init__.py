"""Pure functions from a plan or a table to an altair chart, and a page of them about runs.

The first use of a chart imports altair and sets it up to work without a network (see
`mimokit.charts._renderer`); the palette alone does not import altair.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.charts._compared_runs import scaling as scaling
    from mimokit.charts._curves import loss as loss
    from mimokit.charts._heat_maps import expert_load as expert_load
    from mimokit.charts._heat_maps import stragglers as stragglers
    from mimokit.charts._memory import memory_bars as memory_bars
    from mimokit.charts._memory import rank_memory as rank_memory
    from mimokit.charts._mode_map import mode_map as mode_map
    from mimokit.charts._proof import proof as proof
    from mimokit.charts._report import report as report
    from mimokit.charts._sample_mix import sample_histograms as sample_histograms
    from mimokit.charts._seams import seams as seams
    from mimokit.charts._step_parts import step_parts as step_parts
    from mimokit.charts._tensor_difference import tensor_difference as tensor_difference
    from mimokit.charts._waterfall import waterfall as waterfall
    from mimokit.charts._weight_map import weight_map as weight_map
    from mimokit.extras.strategies.fit_charts import drift as drift
    from mimokit.extras.strategies.fit_charts import step_bytes as step_bytes
    from mimokit.extras.strategies.fit_charts import validation_losses as validation_losses
else:
    _load, __dir__, __all__ = lazy_names(__name__, __file__)

    def __getattr__(name: str) -> object:
        renderer = import_module("mimokit.charts._renderer")
        if name in __all__:
            renderer.import_jsonschema()
        chart = _load(name)
        renderer.enable()
        return chart
