"""The predicted step of runs against the measured one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from mimokit.analysis.comparison import compare
from mimokit.analysis.runs import Runs
from mimokit.config import ConfigError, ExperimentConfig
from mimokit.prediction import predict, predict_shared
from mimokit.prediction.calibration import Calibration, load_calibration

if TYPE_CHECKING:
    from mimokit.prediction.task import HardwareSource

PLANNED_COLUMNS = (
    "run", "mode", "planned", "planned_low", "planned_high", "measured", "low", "high", "error",
)  # fmt: skip
"""Columns of `planned_against_measured`; times are seconds of a step."""


def planned_against_measured(
    runs: Runs, hardware: Calibration | HardwareSource | None = None
) -> pd.DataFrame:
    """Predict the step of every run from its config.yaml, and put the measured median next to it.

    Args:
        hardware: a calibration of the machine that the runs were on, or the file of one: then ranks
            share its cores. Or a GPU, as in `mimokit.predict`. None takes the GPU of each config,
            which is right only for runs on such GPUs.

    Returns:
        PLANNED_COLUMNS, a row per run that was measured and can be predicted; `error` is the
        prediction over the median minus 1. `attrs["left_out"]` says of the others why.

    Raises:
        ValueError: the runs were on CPUs and a calibration does not exist.
    """
    known = _calibration(hardware)
    if known is None and hardware is None and not _on_accelerators(runs):
        raise ValueError(
            "The runs were on CPUs, whose speed no shipped file says; give the calibration that "
            "mimokit.calibrate wrote on this machine, or a GPU to predict for."
        )
    measured = compare(runs, metric="total_time").table.set_index("name")
    modes = runs.runs.set_index("run")["mode"]
    rows, left_out = [], {}
    for name in runs:
        if name not in measured.index:
            left_out[name] = "no step was measured"
            continue
        try:
            planned, low, high = _predicted(runs.config(name), known, hardware)
        except (ConfigError, ValueError) as error:
            left_out[name] = str(error).splitlines()[0]
            continue
        figures = measured.loc[name]
        interval = (figures["median"], figures["low"], figures["high"])
        rows.append((name, modes[name], planned, low, high, *interval, planned / interval[0] - 1))
    table = pd.DataFrame(rows, columns=list(PLANNED_COLUMNS))
    table.attrs["left_out"] = left_out
    table.attrs["how"] = "predicted for " + (
        "the calibrated machine" if known is not None else f"{hardware or 'the GPU of each config'}"
    )
    return table


def _calibration(hardware: object) -> Calibration | None:
    if isinstance(hardware, Calibration):
        return hardware
    if isinstance(hardware, str | Path) and Path(hardware).is_file():
        try:
            return load_calibration(Path(hardware))
        except ConfigError:
            return None
    return None


def _on_accelerators(runs: Runs) -> bool:
    return bool(runs.runs["accelerators"].notna().any())


def _predicted(
    config: ExperimentConfig,
    known: Calibration | None,
    hardware: Calibration | HardwareSource | None,
) -> tuple[float, float, float]:
    if known is not None:
        seconds = predict_shared(config, known.costs, known.cores).seconds
        return seconds, seconds, seconds
    prediction = predict(config, gpu=hardware)  # type: ignore[arg-type]
    return prediction.seconds, prediction.low, prediction.high
