"""Constants of a training stack from a user's own runs."""

from mimokit.prediction.own_runs.fit import Adjusted, adjust
from mimokit.prediction.own_runs.table import OwnRun, read_runs

__all__ = ["Adjusted", "OwnRun", "adjust", "read_runs"]
