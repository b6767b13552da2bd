"""200 runs of changing layouts in one cluster: `python -m tests.benchmarks.soak [RUNS]`.

Files, threads and memory of every engine and of the client are compared with those after the tenth
run. Then a client takes 1,000,000 samples, of which a monitor keeps rows; its memory is compared
with that after 200,000.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from mimokit.cluster import EngineCluster
from mimokit.cluster.sample_log import SampleLog
from mimokit.samples import StepSample, from_wire, to_wire
from mimokit_widgets.live.rows import RowHeader, RowQueue
from tests.benchmarks.table import show
from tests.charts.fakes import samples
from tests.footprint import Footprint, footprints, soak, soak_runs

RUNS = 200
FIRST = 10
LOOKS = (FIRST, 50, 100, 150, RUNS)
TARGET = 5.0
"""Per cent."""
ENGINES = 4
ITERATIONS = 2
SAMPLES = 1_000_000
MOST_MB = 10.0

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
    """Return what the samples of one long run take of a client with a monitor."""
    sent = [to_wire(one) for one in samples(25, 8) if isinstance(one, StepSample)]
    blobs = [pickle.dumps(message) for message in sent]
    log, monitor = SampleLog(), RowQueue(RowHeader.of(["images", "language_module"]))
    log.listen(lambda sample: monitor.add(from_wire(sample)))
    looks = {}
    for number in range(0, count, len(blobs)):
        log.receive(number // len(blobs) % 8, blobs)
        if (done := number + len(blobs)) in (count // 5, count):
            while len(monitor) < done:
                time.sleep(0.01)
                monitor.take()  # as it is sent to a browser
            looks[done] = psutil.Process().memory_info().rss
            Console().print(f"{done:,} of {count:,} samples: {looks[done] / 1e6:.1f} MB")
    log.close()
    log.drain()
    last = sum(1 for _ in log)
    grown = looks[count] - looks[count // 5]
    return [
        {"name": f"samples lost of {count:,}", "measured": count - last, "target": 0, "unit": "",
         "ok": last == count},
        {"name": f"memory of the client from {count // 5:,} to {count:,} samples",
         "measured": grown / 1e6, "target": MOST_MB, "unit": "MB", "ok": grown / 1e6 <= MOST_MB},
    ]  # fmt: skip


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
