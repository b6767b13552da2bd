"""Runs from a config: train a layout, prove it, and what they leave behind.

Names are loaded when first used: planning from the command line needs neither a cluster nor pandas.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mimokit.config.evaluations import Evaluations
    from mimokit.experiment.calibration import calibrate
    from mimokit.experiment.run import TrainingResult, TrainingRun, train
    from mimokit.experiment.snapshot import StepSnapshot
    from mimokit.experiment.stepper import Stepper, StepperError
    from mimokit.experiment.verification import VerificationReport, verify

__all__ = [
    "Evaluations",
    "StepSnapshot",
    "Stepper",
    "StepperError",
    "TrainingResult",
    "TrainingRun",
    "VerificationReport",
    "calibrate",
    "train",
    "verify",
]

_HOME = {
    "Evaluations": "mimokit.config.evaluations",
    "StepSnapshot": "mimokit.experiment.snapshot",
    "Stepper": "mimokit.experiment.stepper",
    "StepperError": "mimokit.experiment.stepper",
    "TrainingResult": "mimokit.experiment.run",
    "TrainingRun": "mimokit.experiment.run",
    "VerificationReport": "mimokit.experiment.verification",
    "calibrate": "mimokit.experiment.calibration",
    "train": "mimokit.experiment.run",
    "verify": "mimokit.experiment.verification",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # over the submodule of the same name
    return value
