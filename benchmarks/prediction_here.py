"""Predicted steps of digits layouts on this machine, against measured ones.

Nothing is fitted to the layouts. The speed of a virtual machine changes by a tenth and more within
a minute. The machine is therefore calibrated before and after every three trainings, the cores that
the ranks get are measured around each training, and the load of other processes is reported:
`python -m benchmarks.prediction_here [--rounds N]`.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.table import Table

import mimokit
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.config.runtime import Evaluations
from mimokit.planning import plan_layout
from mimokit.prediction.calibration import Calibration
from mimokit.prediction.local_cpu import predict_shared
from mimokit.samples import Sample, StepSample, to_wire
from tests.layouts import digits_config
from tests.layouts_apart import apart_config

if TYPE_CHECKING:
    from mimokit.engine.replicas.world import Peers

STEPS, WARMUP = 24, 4
TARGET = 0.15
MOST_OTHERS, TRIES = 0.05, 3
"""What is measured while others take a larger share of the cores is measured again, so often."""
IMAGES = {"images": 4.5}
"""Strips have 1 to 8 images, each length as often."""
LAYOUTS = {
    "homogeneous, DP8": digits_config((1, 8), (1, 8)),
    "homogeneous, TP2 DP4": digits_config((2, 4), (2, 4)),
    "colocated, DP8 and TP4 DP2": digits_config((1, 8), (4, 2)),
    "colocated, DP4 and TP2 DP2": digits_config((1, 4), (2, 2)),
    "heterogeneous, TP2 DP2 and PP2 DP2, 4 micro-batches": apart_config((2, 1, 2), (1, 2, 2), 4),
    "heterogeneous, DP2 and DP2, 2 micro-batches": apart_config((1, 1, 2), (1, 1, 2), 2),
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
        predicted_cpu: CPU seconds of a step, all ranks.
        measured_cpu: the same.
        others: share of the cores that other processes took meanwhile.
    """

    ranks: int
    predicted: list[float] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    predicted_cpu: list[float] = field(default_factory=list)
    measured_cpu: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    @property
    def error(self) -> float:
        """Of the median prediction, relative to the median measurement."""
        return statistics.median(self.predicted) / statistics.median(self.measured) - 1

    @property
    def cpu_error(self) -> float:
        """The same of CPU seconds."""
        return statistics.median(self.predicted_cpu) / statistics.median(self.measured_cpu) - 1


def timed_steps(
    plan: Any, config: ExperimentConfig, peers: Peers | None = None
) -> list[tuple[float, float]]:
    """Train as `mimokit.train` does; return (seconds, CPU seconds) of this rank at every step."""
    from mimokit import cluster
    from mimokit.engine.data.sources import default_data
    from mimokit.engine.training.loop import train_on_rank

    stamps = []

    def emit(sample: Sample) -> None:
        if isinstance(sample, StepSample):
            stamps.append((time.perf_counter(), time.process_time()))
        cluster.emit(to_wire(sample))

    def without_test(config: ExperimentConfig) -> Any:
        return replace(default_data(config), test=None)

    data = without_test, Evaluations()
    train_on_rank(plan, config, emit, cluster.should_stop, *data, peers=peers)
    return stamps


def spin() -> float:
    """Return the cores that this rank gets while all spin."""
    from mimokit.engine.calibration.timing import cores

    return cores()


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
                trained = [_train(cluster, LAYOUTS[name], found[name]) for name in names]
                after = _calibrate(cluster, path)
                for name, (cores, config) in zip(names, trained, strict=True):
                    _predict(config, [before, after], cores, found[name])
                before = after
    return found


def _calibrate(cluster: EngineCluster, path: Path) -> Calibration:
    """Calibrate; again if others took part of the cores, which its pieces would not tell of."""
    for _ in range(TRIES):
        others = Others(cluster)
        found = mimokit.calibrate(cluster, path, progress=lambda _: None)
        if others.share() <= MOST_OTHERS:
            break
    return found


def _train(
    cluster: EngineCluster, config: ExperimentConfig, outcome: Outcome
) -> tuple[float, ExperimentConfig]:
    """Train, again if others took part of the cores.

    Returns:
        The cores that the ranks got before and after, and what was trained.
    """
    runtime = config.runtime.model_copy(update={"num_iterations": STEPS})
    longer = config.model_copy(update={"runtime": runtime})
    ranks = outcome.ranks
    for _ in range(TRIES):
        before = sum(cluster.run(spin, world_size=ranks))
        others = Others(cluster)
        stamps = cluster.run(timed_steps, plan_layout(longer), longer, world_size=ranks)
        share = others.share()
        if share <= MOST_OTHERS:
            break
    outcome.others.append(share)
    outcome.measured.append(_median_step([wall for wall, _ in stamps[0]]))
    outcome.measured_cpu.append(sum(_median_step([cpu for _, cpu in rank]) for rank in stamps))
    return (before + sum(cluster.run(spin, world_size=ranks))) / 2, longer


def _predict(
    config: ExperimentConfig, calibrations: Sequence[Calibration], cores: float, outcome: Outcome
) -> None:
    """Note the mean of what the calibrations around a training predict."""
    found = [predict_shared(config, here.costs, cores, IMAGES) for here in calibrations]
    outcome.predicted.append(statistics.fmean(one.seconds for one in found))
    outcome.predicted_cpu.append(statistics.fmean(sum(one.cpu_seconds) for one in found))


def _median_step(stamps: Sequence[float]) -> float:
    used = stamps[WARMUP:]
    return statistics.median(b - a for a, b in pairwise(used))


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
        *("layout", "ranks", "predicted", "measured (min to max)", "error"),
        *("CPU predicted", "CPU measured", "error", "others"),
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
            f"{1000 * statistics.median(one.predicted_cpu):.0f}",
            f"{1000 * statistics.median(one.measured_cpu):.0f}",
            f"{one.cpu_error:+.0%}",
            f"{statistics.median(one.others):.0%} (most {max(one.others):.0%})",
        )
    Console(width=160).print(table)


def main(rounds: Annotated[int, typer.Option(min=1)] = 3) -> None:
    """Print both tables."""
    from benchmarks.table import show

    show("Prediction on this machine", rows(rounds))


if __name__ == "__main__":
    typer.run(main)
