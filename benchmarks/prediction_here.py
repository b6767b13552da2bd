"""Predicted steps of digits layouts on this machine, against measured ones.

Nothing is fitted to the layouts. The speed of a virtual machine changes by a tenth and more within
a minute. The machine is therefore calibrated before and after every three trainings, and the load
of other processes is reported: `python -m benchmarks.prediction_here [--rounds N]`.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.table import Table

import mimokit
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.config.prediction import PredictedInput, PredictionConfig
from mimokit.experiment.calibration_on_rank import calibrate_steps
from mimokit.planning import plan_layout
from mimokit.prediction.hardware import Hardware
from tests.layouts import digits_config
from tests.layouts_apart import apart_config

STEPS, WARMUP = 24, 4
TARGET = 0.25
MOST_OTHERS, TRIES = 0.05, 3
"""What is measured while others take a larger share of the cores is measured again, so often."""
IMAGES = PredictionConfig(inputs={"images": PredictedInput(length=4, count=4.5)})
"""Strips have 1 to 8 images, each length as often."""
LAYOUTS = {
    "homogeneous, DP8": digits_config((1, 8), (1, 8)),
    "homogeneous, TP2 DP4": digits_config((2, 4), (2, 4)),
    "colocated, DP8 and TP4 DP2": digits_config((1, 8), (4, 2)),
    "colocated, DP4 and TP2 DP2": digits_config((1, 4), (2, 2)),
    "heterogeneous, TP2 DP2 and PP2 DP2, 4 micro-batches": apart_config((2, 1, 2), (1, 2, 2), 4),
    "heterogeneous, DP2 and DP2, 2 micro-batches": apart_config((1, 1, 2), (1, 1, 2), 2),
    "homogeneous, DP2": digits_config((1, 2), (1, 2)),
    "homogeneous, TP2": digits_config((2, 1), (2, 1)),
    "heterogeneous, 1 and 1, 4 micro-batches": apart_config((1, 1, 1), (1, 1, 1), 4),
}

BLOCKS = tuple(tuple(LAYOUTS)[i : i + 3] for i in range(0, len(LAYOUTS), 3))
"""Layouts that are trained between two calibrations."""


@dataclass
class Outcome:
    """One layout, one entry per round.

    Attributes:
        ranks: of the layout.
        predicted: seconds of a step.
        measured: median seconds of a step.
        others: share of the cores that other processes took meanwhile.
    """

    ranks: int
    predicted: list[float] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    @property
    def error(self) -> float:
        """Of the median prediction, relative to the median measurement."""
        return statistics.median(self.predicted) / statistics.median(self.measured) - 1


class Others:
    """Tells how much of the cores other processes took since it was made.

    What the machine does for the ranks, such as carrying their messages, counts as theirs or as
    others', as the kernel accounts for it.
    """

    def __init__(self, cluster: EngineCluster) -> None:
        self._processes = [psutil.Process(pid) for pid in cluster.pids if pid is not None]
        self._processes.append(psutil.Process())
        self._begun, self._before = time.perf_counter(), self._seconds()

    def share(self) -> float:
        """Return the share of all cores."""
        passed = time.perf_counter() - self._begun
        return (self._seconds() - self._before) / passed / os.cpu_count()  # type: ignore[operator]

    def _seconds(self) -> float:
        times = psutil.cpu_times()
        own = sum(t.user + t.system for t in (one.cpu_times() for one in self._processes))
        return sum(times) - times.idle - getattr(times, "iowait", 0.0) - own


def measure(rounds: int) -> dict[str, Outcome]:
    """Calibrate, train a few layouts and calibrate again, round by round."""
    found = {name: Outcome(plan_layout(config).world_size) for name, config in LAYOUTS.items()}
    with EngineCluster(n=8) as cluster, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "here.json"
        for number in range(rounds):
            Console().print(f"round {number + 1} of {rounds}, load {os.getloadavg()[0]:.1f}")
            before = _calibrate(cluster, path)
            for names in BLOCKS:
                for name in names:
                    _train(cluster, LAYOUTS[name], found[name])
                after = _calibrate(cluster, path)
                for name in names:
                    config = LAYOUTS[name].model_copy(update={"prediction": IMAGES})
                    found[name].predicted.append(
                        statistics.fmean(
                            mimokit.predict(config, gpu=here).seconds for here in (before, after)
                        )
                    )
                before = after
    return found


def _calibrate(cluster: EngineCluster, path: Path) -> Hardware:
    """Calibrate; again if others took part of the cores, which its pieces would not tell of."""
    for _ in range(TRIES):
        others = Others(cluster)
        found = mimokit.calibrate(cluster, path, progress=lambda _: None)
        if others.share() <= MOST_OTHERS:
            break
    return found.hardware


def _train(cluster: EngineCluster, config: ExperimentConfig, outcome: Outcome) -> None:
    """Train; again if others took part of the cores."""
    runtime = config.runtime.model_copy(update={"num_iterations": STEPS})
    longer = config.model_copy(update={"runtime": runtime})
    for _ in range(TRIES):
        others = Others(cluster)
        times = cluster.run(
            calibrate_steps, plan_layout(longer), longer, WARMUP, world_size=outcome.ranks
        )
        share = others.share()
        if share <= MOST_OTHERS:
            break
    outcome.others.append(share)
    outcome.measured.append(statistics.fmean(wall for wall, _ in times))


def ordered_alike(found: dict[str, Outcome]) -> tuple[int, int]:
    """Return (pairs of layouts that are ordered as measured, all pairs)."""
    ones = list(found.values())
    pairs = [(a, b) for i, a in enumerate(ones) for b in ones[:i]]
    alike = [
        (statistics.median(a.predicted) - statistics.median(b.predicted))
        * (statistics.median(a.measured) - statistics.median(b.measured))
        > 0
        for a, b in pairs
    ]
    return sum(alike), len(alike)


def rows(rounds: int = 3) -> list[dict[str, Any]]:
    """Return the figures of the common table."""
    found = measure(rounds)
    _show(found)
    alike, pairs = ordered_alike(found)
    errors = [
        {
            "name": f"{name}: error of the predicted step",
            "measured": 100 * abs(one.error),
            "target": 100 * TARGET,
            "unit": "%",
            "ok": abs(one.error) <= TARGET,
        }
        for name, one in found.items()
    ]
    order = {
        "name": "pairs of layouts ordered as measured",
        "measured": alike,
        "target": f"{pairs} of {pairs}",
        "unit": "",
        "ok": alike == pairs,
    }
    return [*errors, order]


def _show(found: dict[str, Outcome]) -> None:
    table = Table(
        *("layout", "ranks", "predicted", "measured (min to max)", "error", "others"),
        title=f"milliseconds per step, medians; load {os.getloadavg()[0]:.1f}",
    )
    for name, one in found.items():
        spread = f"{1000 * min(one.measured):.0f} to {1000 * max(one.measured):.0f}"
        table.add_row(
            name,
            str(one.ranks),
            f"{1000 * statistics.median(one.predicted):.0f}",
            f"{1000 * statistics.median(one.measured):.0f} ({spread})",
            f"{one.error:+.0%}",
            f"{statistics.median(one.others):.0%} (most {max(one.others):.0%})",
        )
    Console(width=160).print(table)


def main(rounds: Annotated[int, typer.Option(min=1)] = 3) -> None:
    """Print both tables."""
    from benchmarks.table import show

    show("Prediction on this machine", rows(rounds))


if __name__ == "__main__":
    typer.run(main)
