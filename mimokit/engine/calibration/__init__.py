"""What a rank measures so that predictions hold for the machine at hand."""

from mimokit.engine.calibration.measure import measure
from mimokit.engine.calibration.steps import median_step_seconds

__all__ = ["measure", "median_step_seconds"]
