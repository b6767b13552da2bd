"""Pure functions, a plan or a table in, an altair chart out.

Importing this package makes charts show without a network; see `mimokit.charts.renderer`.
"""

from mimokit.charts import renderer
from mimokit.charts.batch_split import batch_split
from mimokit.charts.evaluation import accuracy
from mimokit.charts.loss import loss
from mimokit.charts.phases import phases
from mimokit.charts.rank_map import rank_map
from mimokit.charts.step_times import step_times
from mimokit.charts.throughput import throughput
from mimokit.charts.training import training

renderer.enable()

__all__ = [
    "accuracy",
    "batch_split",
    "loss",
    "phases",
    "rank_map",
    "step_times",
    "throughput",
    "training",
]
