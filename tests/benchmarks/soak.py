"""200 runs of changing layouts in one cluster: `python -m tests.benchmarks.soak [RUNS]`.

Files, threads and memory of every engine and of the client are compared with those after the tenth
run.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mimokit.cluster import EngineCluster
from tests.benchmarks.table import show
from tests.footprint import Footprint, footprints, soak, soak_runs

RUNS = 200
FIRST = 10
LOOKS = (FIRST, 50, 100, 150, RUNS)
TARGET = 5.0
"""Per cent."""
ENGINES = 4
ITERATIONS = 2

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
    return [
        _row(f"{name} after {max(looks)} runs, most grown process", _growth(first, last, name))
        for name in ("files", "threads", "memory")
    ]


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
