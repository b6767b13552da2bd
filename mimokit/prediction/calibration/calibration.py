"""The result of `calibrate`: hardware, and how well its constants fit what was measured."""

from dataclasses import dataclass
from pathlib import Path

from mimokit.prediction.calibration.cores import fit_cores
from mimokit.prediction.calibration.fit import FittedLaw
from mimokit.prediction.calibration.hardware import fit_hardware
from mimokit.prediction.calibration.measurements import Measurements
from mimokit.prediction.hardware import Hardware


@dataclass(frozen=True)
class Calibration:
    """Result of `calibrate`."""

    hardware: Hardware
    fits: tuple[FittedLaw, ...]
    path: Path | None = None

    def __str__(self) -> str:
        cores = self.hardware.cores
        shared = [] if cores is None else [f"{n} share {c:.2g}" for n, c in cores.shared.items()]
        title = self.hardware.name + (f"; cores: {', '.join(shared)}" if shared else "")
        where = [] if self.path is None else [f'predict(..., hardware="{self.path}")']
        return "\n".join([title, *(f"  {fit}" for fit in self.fits), *where])


def fit_calibration(measured: Measurements) -> Calibration:
    """Fit hardware to measurements.

    Raises:
        ConfigError: there are too few measurements, or a time is not positive and finite.
    """
    hardware, fits = fit_hardware(measured)
    if not measured.steps:
        return Calibration(hardware, fits)
    hardware, of_steps = fit_cores(hardware, measured.steps)
    return Calibration(hardware, (*fits, of_steps))
