"""A machine as `calibrate` found it, and the two files that keep it.

One is a hardware file, as `load_hardware` and `predict` take it; the other lies beside it and keeps
what only mimokit's own engine needs: CPU seconds, and the fits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mimokit.config.errors import ConfigError, Problem
from mimokit.prediction.calibration.cpu_costs import fit_shared_costs
from mimokit.prediction.calibration.fit import Fit
from mimokit.prediction.calibration.hardware import fit_hardware
from mimokit.prediction.calibration.measurements import Measurements
from mimokit.prediction.hardware import Hardware, load_hardware, save_hardware
from mimokit.prediction.local_cpu.cost_model import CoreCosts, SharedCosts
from mimokit.prediction.step_time import Software

FORMAT = 2
"""Of the file beside the hardware file; a reader of another one refuses it."""
SUFFIX = ".calibration.json"


@dataclass(frozen=True)
class Calibration:
    """What `calibrate` found.

    Attributes:
        hardware: one rank and its links, for `predict`.
        software: mimokit's own engine on this machine, for `predict`.
        costs: CPU seconds of pieces of a step, for `predict_shared`.
        cores: CPU seconds per second that all ranks of a host get together.
        fits: the laws behind the numbers, with their residuals.
        path: the hardware file, None before `save_calibration`.
    """

    hardware: Hardware
    software: Software
    costs: SharedCosts
    cores: float
    fits: tuple[Fit, ...]
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
        shares = [f"{one.busy:.0%}" for one in self.costs.at_work.values()]
        ranks = [str(ranks) for ranks in self.costs.at_work]
        return f"{', '.join(shares)} of them busy on {', '.join(ranks)} ranks"


def fit_calibration(measured: Measurements) -> Calibration:
    """Return the calibration that measurements give.

    Raises:
        ConfigError: too few measurements, or times that are none.
    """
    hardware, of_hardware = fit_hardware(measured)
    costs, of_costs = fit_shared_costs(measured)
    fits = of_hardware + of_costs
    return Calibration(hardware, _software(measured, costs), costs, measured.cores, fits)


def _software(measured: Measurements, costs: SharedCosts) -> Software:
    """Return mimokit's engine: Megatron's unfused layers, gradients reduced at the end in fp32."""
    laws, collectives = costs.at(len(measured.hosts)).pieces, measured.all_at_work.collectives
    passes = [law["layer"] for name, law in laws.items() if name.startswith("language")]
    smallest = min(one.size for one in collectives)
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


def save_calibration(calibration: Calibration, path: str | os.PathLike[str]) -> Calibration:
    """Write the hardware file, and the file beside it.

    Args:
        calibration: what to keep.
        path: of the hardware file.
    """
    target = save_hardware(calibration.hardware, path)
    content = {
        "format": FORMAT,
        "cores": calibration.cores,
        "software": asdict(calibration.software),
        "costs": asdict(calibration.costs),
        "fits": [asdict(fit) for fit in calibration.fits],
    }
    beside = target.with_suffix(SUFFIX)
    beside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return replace(calibration, path=target)


def load_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Return what `calibrate` found.

    Args:
        path: of the hardware file.

    Raises:
        ConfigError: a file cannot be read, is of another format, or has been changed.
    """
    hardware = load_hardware(Path(path))
    beside = Path(path).with_suffix(SUFFIX)
    content = _read(beside)
    found = content.get("format")
    if found != FORMAT:
        what = "no format" if found is None else f"format {found}"
        raise _refused(beside, f"it has {what}, and this version of mimokit reads format {FORMAT}")
    try:
        return Calibration(
            hardware,
            Software(**content["software"]),
            _costs(content["costs"]),
            float(content["cores"]),
            tuple(_fit(fit) for fit in content["fits"]),
            Path(path),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _refused(beside, f"what calibrate wrote has been changed ({error})") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _refused(path, f"it cannot be read ({error.strerror})") from None
    except ValueError:
        raise _refused(path, "it is not JSON") from None
    return content if isinstance(content, dict) else {}


def _refused(path: Path, why: str) -> ConfigError:
    sentence = f"Calibration file '{path}': {why}; write one with mimokit.calibrate(cluster)."
    return ConfigError([Problem("calibration", "path", str(path), sentence)])


def _costs(content: Mapping[str, Any]) -> SharedCosts:
    """JSON has names where numbers of ranks were."""
    at_work = {
        int(ranks): CoreCosts(
            costs["pieces"],
            {
                kind: {int(size): law for size, law in groups.items()}
                for kind, groups in costs["collectives"].items()
            },
            float(costs["busy"]),
        )
        for ranks, costs in content["at_work"].items()
    }
    return SharedCosts(at_work)


def _fit(content: Mapping[str, Any]) -> Fit:
    return Fit(
        content["name"],
        content["constants"],
        tuple(content["residuals"]),
        tuple(content["labels"]),
        tuple(content["outliers"]),
    )
