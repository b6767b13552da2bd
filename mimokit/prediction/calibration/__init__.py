"""Fits of measured seconds that describe a machine, with residuals."""

from mimokit.prediction.calibration.calibration import (
    Calibration,
    calibration_of,
    fit_calibration,
    load_calibration,
    save_calibration,
)
from mimokit.prediction.calibration.measurements import RankMeasurements, merge

__all__ = [
    "Calibration",
    "RankMeasurements",
    "calibration_of",
    "fit_calibration",
    "load_calibration",
    "merge",
    "save_calibration",
]
