"""What a rank measures so that predictions hold for the machine at hand."""

from mimokit.engine.calibration.measure import measure
from mimokit.engine.calibration.steps import step_times

__all__ = ["measure", "step_times"]
