"""A hardware file from what a cluster measured: rates, links, and the cores that ranks share."""

from mimokit.prediction.calibration.calibration import Calibration, fit_calibration
from mimokit.prediction.calibration.measurements import RankMeasurements, merge

__all__ = ["Calibration", "RankMeasurements", "fit_calibration", "merge"]
