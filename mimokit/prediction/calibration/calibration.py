"""The result of `calibrate`, and its two files.

One is a hardware file for `load_hardware` and `predict`. The other is next to it and contains the
CPU seconds of mimokit's own engine, and the fits.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationError

from mimokit.config.base import ConfigModel
from mimokit.config.errors import ConfigError, Problem
from mimokit.config.text_file import read_text_file, reason_of
from mimokit.prediction.calibration.cpu_costs import fit_shared_costs
from mimokit.prediction.calibration.fit import FittedLaw
from mimokit.prediction.calibration.hardware import fit_hardware
from mimokit.prediction.calibration.measurements import Measurements
from mimokit.prediction.hardware import Hardware, load_hardware, save_hardware
from mimokit.prediction.local_cpu.cost_model import SharedCosts
from mimokit.prediction.step_time import Software

FORMAT = 2
"""Format of the file next to the hardware file. Files of other formats are rejected."""
SUFFIX = ".calibration.json"
MOST_CHARACTERS = 2**26
"""Of that file, which grows with the measured sizes."""


@dataclass(frozen=True)
class Calibration:
    """Result of `calibrate`.

    Attributes:
        software: mimokit's own engine on this machine, for `predict`.
        cores: CPU seconds per second of all ranks of a host together.
    """

    hardware: Hardware
    software: Software
    costs: SharedCosts
    cores: float
    fits: tuple[FittedLaw, ...]
    path: Path | None = None

    def __str__(self) -> str:
        title = (
            f"{self.hardware.name}, {self.cores:.2g} cores for all ranks, "
            f"{self._busy} while ranks hand over to each other"
        )
        where = [] if self.path is None else [f'predict(..., hardware="{self.path}")']
        return "\n".join([title, *(f"  {fit}" for fit in self.fits), *where])

    @property
    def _busy(self) -> str:
        shares = [f"{costs.busy:.0%}" for costs in self.costs.at_work.values()]
        ranks = [str(ranks) for ranks in self.costs.at_work]
        return f"{', '.join(shares)} of them busy on {', '.join(ranks)} ranks"


def fit_calibration(measured: Measurements) -> Calibration:
    """Fit a calibration to measurements.

    Raises:
        ConfigError: there are too few measurements, or a time is not positive and finite.
    """
    hardware, of_hardware = fit_hardware(measured)
    costs, of_costs = fit_shared_costs(measured)
    fits = of_hardware + of_costs
    return Calibration(hardware, _software(measured, costs), costs, measured.cores, fits)


def _software(measured: Measurements, costs: SharedCosts) -> Software:
    """Return mimokit's engine: unfused Megatron layers, gradients reduced at the end in fp32."""
    laws, collectives = costs.at(len(measured.hosts)).pieces, measured.all_at_work.collectives
    passes = [law["layer"] for name, law in laws.items() if name.startswith("language")]
    smallest = min((timed.size for timed in collectives), default=0)
    calls = [c.cpu_seconds for c in collectives if c.size == smallest and c.ranks == 2]
    return Software(
        name="mimokit",
        fused_attention=False,
        fused_elementwise=False,
        host_layer=measured.sharing * sum(passes) / max(len(passes), 1),
        host_collective=measured.sharing * sum(calls) / max(len(calls), 1),
        overlaps_data=False,
        gradient_bytes=4,
    )


FORMER = frozenset({"host_expert_layer", "expert_kernels"})
"""Fields of a training stack that files have from before its constants had bounds. Experts are not
among what `calibrate` measures, so that they hold nothing."""


def _without_former(software: object) -> object:
    if not isinstance(software, dict):
        return software
    return {name: value for name, value in software.items() if name not in FORMER}


class CalibrationFile(ConfigModel):
    """The content of the file next to the hardware file: fields of `Calibration`, and `FORMAT`."""

    format: int
    cores: Annotated[float, Field(gt=0)]
    software: Annotated[Software, BeforeValidator(_without_former)]
    costs: SharedCosts
    fits: tuple[FittedLaw, ...]


def calibration_of(path: Path) -> Path:
    """Return the path of the file next to a hardware file."""
    return path.with_suffix(SUFFIX)


def save_calibration(calibration: Calibration, path: str | os.PathLike[str]) -> Calibration:
    """Write the hardware file, and the file next to it."""
    target = save_hardware(calibration.hardware, path)
    content = CalibrationFile(
        format=FORMAT,
        cores=calibration.cores,
        software=calibration.software,
        costs=calibration.costs,
        fits=calibration.fits,
    )
    text = content.model_dump_json(indent=2)
    calibration_of(target).write_text(text + "\n", encoding="utf-8")
    return replace(calibration, path=target)


def load_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Read a calibration.

    Raises:
        ConfigError: a file cannot be read, has another format, or has been changed.
    """
    hardware = load_hardware(Path(path))
    content = _read(calibration_of(Path(path)))
    return Calibration(
        hardware, content.software, content.costs, content.cores, content.fits, Path(path)
    )


def _read(path: Path) -> CalibrationFile:
    try:
        text = read_text_file(path, MOST_CHARACTERS)
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(path, f"it cannot be read ({reason_of(error)})") from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise _refused(path, "it is not JSON") from None
    stated = content.get("format") if isinstance(content, dict) else None
    if stated != FORMAT:
        what = "no format" if stated is None else f"format {stated}"
        raise _refused(path, f"it has {what}, and this version of mimokit reads format {FORMAT}")
    try:
        return CalibrationFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(key) for key in first["loc"])
        what = f"what calibrate wrote has been changed ({field}: {first['msg']})"
        raise _refused(path, what) from None


def _refused(path: Path, why: str) -> ConfigError:
    sentence = f"Calibration file '{path}': {why}; write one with mimokit.calibrate(cluster)."
    return ConfigError([Problem("calibration", "path", str(path), sentence)])
