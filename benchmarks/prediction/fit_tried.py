"""Fit the constants of tried layouts: `python -m benchmarks.prediction.fit_tried --data DIR`.

They are those of `TRIED`. `--without MODEL` leaves a model out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.prediction.choices import GPU, STACK, Tried, groups_of, read_tried, tables_of
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.own_runs import OwnRun
from mimokit.prediction.step_time import load_software
from mimokit.prediction.step_time.constants import CONSTANTS

TRIED = ("matrix nanotron", "host_piped", "network efa")
"""Constants that tables of tried layouts determine."""
SLOW = 0.35
"""Power by which a layout that is slower than the fastest of its group counts less."""


def fit(tried: Sequence[Tried]) -> dict[str, float]:
    """Return the constants that fit the seconds of layouts best.

    Least squares of log errors; runs that stalled are outliers, which hardly count.
    """
    from scipy.optimize import least_squares

    ran = [each for each in tried if each.seconds is not None]
    fastest = {
        key: min(each.seconds or np.inf for each in members)
        for key, members in groups_of(ran).items()
    }
    seconds = np.array([each.seconds for each in ran], dtype=float)
    best = np.array([fastest[each.model, each.nodes] for each in ran])
    weights = (best / seconds) ** SLOW

    def missed(values: NDArray[np.float64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.log(predicted(ran, values) / seconds) * weights
        return found

    known = [CONSTANTS[name] for name in TRIED]
    bounds = [each.low for each in known], [each.high for each in known]
    start = [each.value for each in known]
    scale = np.subtract(bounds[1], bounds[0])
    found = least_squares(
        missed, start, bounds=bounds, x_scale=scale, loss="cauchy", f_scale=0.06, max_nfev=15
    )
    return dict(zip(TRIED, found.x.tolist(), strict=True))


def predicted(ran: Sequence[Tried], values: Sequence[float] | NDArray[np.float64]) -> np.ndarray:
    """Return the seconds of layouts with the constants put in."""
    share, piped, network = map(float, values)
    stack = replace(load_software(STACK), matrix_share=share, host_piped=piped)
    hardware = load_hardware(GPU)
    hardware = replace(hardware, efficiency=replace(hardware.efficiency, network=network))
    runs = [
        OwnRun("", replace(each.task, system=replace(each.task.system, hardware=hardware)), 1.0)
        for each in ran
    ]
    return np.array([run.predicted(stack) for run in runs])


def main() -> None:
    """Print the constants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the tables")
    parser.add_argument("--without", default="", help="a model to leave out")
    arguments = parser.parse_args()
    tried = [each for path in tables_of(arguments.data) for each in read_tried(path)[0]]
    for name, value in fit([one for one in tried if one.model != arguments.without]).items():
        print(f"{name:20s} {value:.4g}")


if __name__ == "__main__":
    main()
