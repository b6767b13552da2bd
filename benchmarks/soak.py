"""200 runs of changing layouts in one cluster: `python -m benchmarks.soak [RUNS]`.

Files, threads and memory of every engine and of the client are compared with those after the tenth
run. Then a client with a monitor takes the 1,000,000 samples of a run and completes its folder; the
most memory that it takes is compared with that of a run of 100,000.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

import mimokit
from benchmarks.table import show
from mimokit.cluster import EngineCluster
from mimokit.cluster.sample_log import SampleLog
from mimokit.experiment.results.folder import Folder
from mimokit.experiment.results.info import RunSetting
from mimokit.experiment.results.writer import RunWriter
from mimokit.experiment.training import TrainingRun
from mimokit.result_files import RunFile
from mimokit.samples import to_wire
from mimokit_widgets import LiveMonitor
from tests.charts.fakes import step
from tests.footprint import Footprint, footprints, soak, soak_runs
from tests.layouts import digits_config

RUNS = 200
FIRST = 10
LOOKS = (FIRST, 50, 100, 150, RUNS)
TARGET = 5.0
"""Per cent."""
ENGINES = 4
ITERATIONS = 2
SAMPLES = 1_000_000
RANKS = 8
SHORTER = 10
MOST_MB = 100.0

Looks = Mapping[int, Mapping[str, Footprint]]
"""Number of runs -> process -> what it holds then."""


def measure(runs: int = RUNS) -> Looks:
    """Train, and look at the processes at some of the runs."""
    found: dict[int, dict[str, Footprint]] = {}
    with (
        EngineCluster(n=ENGINES, progress=False) as cluster,
        tempfile.TemporaryDirectory() as folder,
    ):
        for number in soak(cluster, soak_runs(ITERATIONS), runs, Path(folder)):
            if number in LOOKS or number == runs:
                found[number] = footprints(cluster)
                Console().print(f"after run {number}: {found[number]}", highlight=False)
    return found


def rows(looks: Looks | None = None) -> list[dict[str, Any]]:
    """Return the figures of the table: the largest growth of any process since the tenth run."""
    looks = looks or measure()
    first, last = looks[FIRST], looks[max(looks)]
    of_runs = [
        _row(f"{name} after {max(looks)} runs, most grown process", _growth(first, last, name))
        for name in ("files", "threads", "memory")
    ]
    return [*of_runs, *rows_of_samples()]


def rows_of_samples(count: int = SAMPLES) -> list[dict[str, Any]]:
    """Return what the samples of a long run take of a client with a monitor, to its end."""
    short = whole_run(count // SHORTER)
    long = whole_run(count)
    grown = (long.peak - short.peak) / 1e6
    name = f"memory of the client, most in a run of {count:,} - {count // SHORTER:,} samples"
    return [
        {"name": f"rows lost of {count:,} samples", "measured": long.lost, "target": 0,
         "unit": "", "ok": long.lost == 0},
        {"name": name, "measured": grown, "target": MOST_MB, "unit": "MB", "ok": grown <= MOST_MB},
        {"name": f"tables and picture of {count:,} samples", "measured": long.seconds,
         "target": None, "unit": "s", "ok": True},
    ]  # fmt: skip


@dataclass(frozen=True)
class WholeRun:
    """What a run took: most resident bytes, rows that are not on disk, seconds of its end."""

    peak: int
    lost: int
    seconds: float


def whole_run(count: int) -> WholeRun:
    """Receive so many samples with a monitor, and complete the folder."""
    received = ReceivedRun()
    config = digits_config((1, RANKS), (4, 2), num_iterations=count // RANKS)
    plan = mimokit.plan(config)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        writer = RunWriter(Folder.claim(folder), RunSetting(config, plan))
        writer.begin()
        run = TrainingRun(received, config, plan, folder, writer)
        monitor = LiveMonitor(run)
        for iteration in range(count // RANKS):
            received.receive(iteration)
            if iteration % 1000 == 0:
                received.await_listeners()
        received.await_listeners()
        before, began = psutil.Process().memory_info().rss, time.monotonic()
        received.end()
        run.result()
        monitor.wait()
        found = peak_memory(), time.monotonic() - began
        with (folder / RunFile.METRICS_BY_RANK).open() as table:
            written = sum(1 for _ in table) - 1
    said = f"{count:,} samples: {before / 1e6:.1f} MB before the end, {found[0] / 1e6:.1f} at most"
    Console().print(f"{said}, {found[1]:.0f} s to end", highlight=False)
    return WholeRun(found[0], count - written, found[1])


def peak_memory() -> int:
    """Return the most bytes that were resident since the peak was set back."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


class ReceivedRun:
    """A run of which the client receives samples as they would come from ranks."""

    done, elapsed = False, 1.0

    def __init__(self) -> None:
        self._log, self._ended = SampleLog(), threading.Event()
        self._heard: list[int] = []
        self.each_sample, self.drain = self._log.__iter__, self._log.drain

    @property
    def sample_count(self) -> int:
        """The number of samples so far."""
        return len(self._log)

    def receive(self, iteration: int) -> None:
        """Receive an iteration of all ranks."""
        for rank in range(RANKS):
            message = to_wire(step(iteration, rank, 2.5))
            self._log.receive(rank, [pickle.dumps(message)])

    def on_sample(self, callback: Callable[[Any], object]) -> None:
        """Call back with every sample."""
        number = len(self._heard)
        self._heard.append(0)

        def hear(message: Any) -> None:
            callback(message)
            self._heard[number] += 1

        self._log.listen(hear)

    def await_listeners(self) -> None:
        """Wait until all have heard what has come."""
        while min(self._heard) < len(self._log):
            time.sleep(0.01)

    def end(self) -> None:
        """No more samples come."""
        self._log.close()
        self.done = True
        self._ended.set()

    def result(self, timeout: float | None = None) -> list[Any]:
        """Wait for the end."""
        if not self._ended.wait(timeout):
            raise TimeoutError
        return []


def _growth(first: Mapping[str, Footprint], last: Mapping[str, Footprint], name: str) -> float:
    return max(
        100.0 * (getattr(last[process], name) / getattr(first[process], name) - 1.0)
        for process in first
    )


def _row(name: str, measured: float) -> dict[str, Any]:
    return {
        "name": name,
        "measured": measured,
        "target": TARGET,
        "unit": "%",
        "ok": measured <= TARGET,
    }


def show_looks(looks: Looks) -> None:
    """Print files / threads / MB of every process at every look."""
    table = Table("process", *(f"run {number}" for number in looks), title="files/threads/MB")
    for process in looks[min(looks)]:
        held = [look[process] for look in looks.values()]
        table.add_row(process, *(f"{a.files}/{a.threads}/{a.memory / 1e6:.1f}" for a in held))
    Console().print(table)


if __name__ == "__main__":
    measured = measure(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
    show_looks(measured)
    show("Files, threads and memory over many runs", rows(measured))
