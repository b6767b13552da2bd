"""Adjusts the constants of a training stack to a user's own runs."""

import os
from pathlib import Path

from mimokit.config import PredictionConfig
from mimokit.config.errors import ConfigError, Problem
from mimokit.prediction.hardware import Hardware, load_hardware
from mimokit.prediction.own_runs import Adjusted, OwnRun, adjust, read_runs
from mimokit.prediction.step_time import Software
from mimokit.prediction.step_time.software import save_software
from mimokit.prediction.task import HardwareSource, chosen_software, task_of

Source = str | os.PathLike[str]


def calibrate_from(
    runs: Source,
    gpu: HardwareSource = "h100",
    *,
    software: str | Software | None = None,
    save: Source | None = None,
) -> Adjusted:
    """Adjust the constants of a training stack to own runs, inside the bounds of their sources.

    Args:
        runs: a CSV (`mimokit.prediction.own_runs.read_runs` has its columns), or folders of
            results.
        gpu: that the runs were on, or the hardware file that `calibrate` wrote there.
        software: the stack that they ran with; its constants are the prior. None: megatron-bridge,
            on CPUs mimokit's own.
        save: a file to write, for `software=` of `predict` and `search`.

    Returns:
        Which constants moved, and the error with each run left out; `print` shows them.

    Raises:
        ConfigError: the runs cannot be read, their units are wrong, or there is a single one.
    """
    hardware = load_hardware(gpu)
    stack = chosen_software(software, PredictionConfig(), hardware)
    path = Path(runs)
    read = read_runs if path.suffix == ".csv" else _folders
    adjusted = adjust(read(path, hardware, stack), stack)
    if save is not None:
        save_software(adjusted.software, adjusted.base, save)
    return adjusted


def _folders(path: Path, hardware: Hardware, software: Software) -> tuple[OwnRun, ...]:
    from mimokit.analysis import load_runs
    from mimokit.analysis.run_folders import RunFolderError

    try:
        loaded = load_runs(path)
    except RunFolderError as error:
        raise _refused(path, str(error)) from None
    own_runs = []
    for name in loaded:
        config, steps = loaded.config(name), loaded.only([name]).iterations
        times = steps.loc[steps["iteration"] >= config.runtime.warmup_iterations, "total_time"]
        if times.empty:
            continue
        task = task_of(config, gpu=hardware, software=software)
        own_runs.append(OwnRun(name, task, float(times.median())))
    if not own_runs:
        raise _refused(path, "no step of its runs was measured")
    return tuple(own_runs)


def _refused(path: Path, why: str) -> ConfigError:
    sentence = f"Own runs '{path}': {why}"
    return ConfigError([Problem("calibration", "runs", str(path), sentence)])
