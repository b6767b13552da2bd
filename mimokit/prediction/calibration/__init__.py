"""A hardware file from what a cluster measured: rates, links, and the cores that ranks share."""

from mimokit.prediction.calibration.calibration import Calibration, fit_calibration
from mimokit.prediction.calibration.measurements import RankMeasurements, measurements_of

__all__ = ["Calibration", "RankMeasurements", "fit_calibration", "measurements_of"]
