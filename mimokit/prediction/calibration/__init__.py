"""Fits of measured seconds that describe a machine, with residuals."""

from mimokit.prediction.calibration.calibration import (
    Calibration,
    calibration_of,
    fit_calibration,
    load_calibration,
    save_calibration,
)
from mimokit.prediction.calibration.fit import FittedLaw, fit_law
from mimokit.prediction.calibration.measurements import Measurements, RankMeasurements, merge

__all__ = [
    "Calibration",
    "FittedLaw",
    "Measurements",
    "RankMeasurements",
    "calibration_of",
    "fit_calibration",
    "fit_law",
    "load_calibration",
    "merge",
    "save_calibration",
]
