"""How long results folders take to load: `python -m benchmarks.load_runs`.

One run of 16 ranks, 1,000 iterations and two modules is written with random numbers of full length;
the other 199 are links to its files, so that the disk is not measured.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.table import show
from mimokit.analysis import Runs, load_runs, per_iteration
from mimokit.samples import MODULE_COLUMNS, STEP_COLUMNS, module_column

RUNS, ITERATIONS, RANKS = 200, 1_000, 16
MODULES = ("images", "language_module")
MILLION = 63
"""Runs with a million rows of ranks: 63 × 16,000."""


def rows() -> list[dict[str, Any]]:
    """Load 200 runs, then their ranks; then a million rows against plain pandas."""
    with TemporaryDirectory() as folder:
        names = write(Path(folder))
        begin = time.perf_counter()
        runs = load_runs(folder)
        loaded = time.perf_counter() - begin
        assert len(runs) == RUNS
        assert len(runs.iterations) == RUNS * ITERATIONS
        part = runs.only(names[:MILLION])
        before = resident()
        begin = time.perf_counter()
        count = len(part.ranks)
        ranks = time.perf_counter() - begin
        assert count == MILLION * ITERATIONS * RANKS
        megabytes = memory(part) / 1e6
        plain = plain_pandas(Path(folder) / name for name in names[:MILLION])
        begin = time.perf_counter()
        assert len(runs[names[0]].ranks) == ITERATIONS * RANKS
        one = time.perf_counter() - begin
    return [
        row("load_runs, 200 runs × 1,000 iterations × 16 ranks", loaded, 5.0, "s"),
        row(f"ranks and modules of {count:,} rows, at their first use", ranks, None, "s"),
        row("the same, over pandas.read_csv one after the other", ranks / plain, None, "×"),
        row("ranks and modules of one of the runs", one, 1.0, "s"),
        row(f"tables of {count:,} rows of ranks", megabytes, None, "MB"),
        row("memory of the process for them, at its peak", peak() - before, None, "MB"),
    ]


def row(name: str, measured: float, target: float | None, unit: str) -> dict[str, Any]:
    """Return one measurement against its target."""
    ok = target is None or measured <= target
    return {"name": name, "measured": measured, "target": target, "unit": unit, "ok": ok}


def write(folder: Path) -> list[str]:
    """Write the folders; return their names."""
    rng = np.random.default_rng(0)
    names = [f"run_{number:03}" for number in range(RUNS)]
    modules = [module_column(module, name) for module in MODULES for name in MODULE_COLUMNS]
    values = {name: rng.random(ITERATIONS * RANKS) for name in (*STEP_COLUMNS, *modules)}
    steps = pd.DataFrame(values)
    steps["iteration"] = np.repeat(np.arange(ITERATIONS), RANKS)
    steps["rank"] = np.tile(np.arange(RANKS), ITERATIONS)
    steps["warmup"] = (steps["iteration"] < 5).astype(float)
    first = folder / names[0]
    first.mkdir()
    steps.to_csv(first / "metrics_by_rank.csv", index=False)
    per_iteration(steps).to_csv(first / "metrics.csv", index=False)
    sizes = {"tensor_parallel": 1, "data_parallel": RANKS}
    info = {
        "name": "made up",
        "status": "completed",
        "deployment_mode": "homogeneous",
        "world_size": RANKS,
        "warmup_iterations": 5,
        "modules": {name: {"ranks": list(range(RANKS)), **sizes} for name in MODULES},
    }
    (first / "experiment_info.json").write_text(json.dumps(info))
    for name in names[1:]:
        (folder / name).mkdir()
        for file in first.iterdir():
            os.link(file, folder / name / file.name)
    return names


def plain_pandas(folders: Iterable[Path]) -> float:
    """Return the seconds of reading the same files without anything else."""
    begin = time.perf_counter()
    tables = [pd.read_csv(folder / "metrics_by_rank.csv") for folder in folders]
    pd.concat(tables, ignore_index=True)
    return time.perf_counter() - begin


def memory(runs: Runs) -> float:
    """Return the bytes of the tables by rank."""
    return float(sum(table.memory_usage(deep=True).sum() for table in (runs.ranks, runs.modules)))


def resident() -> float:
    """Return the megabytes of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def peak() -> float:
    """Return the most megabytes that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    show("Loading runs", rows())
