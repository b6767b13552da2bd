"""Starting 8 engines with Megatron imported: `python -m benchmarks.cold_start`.

Both ways in one run, each in a fresh interpreter, alternating: a plain `ipyparallel.Cluster(n=8)`
followed by the imports on every engine, and an `EngineCluster(n=8)` whose engines have the same
modules imported. The clock runs from before the cluster is asked for until every engine has
answered that the modules are there. Memory is the proportional set size of an idle engine.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TypedDict

ENGINES = 8
PAIRS = 2
LARGEST_RATIO = 0.5
LARGEST_MEGABYTES = 200.0
MODULES = ("torch", "megatron.core")


class Row(TypedDict):
    """One measurement against its target."""

    name: str
    measured: float
    target: float | None
    unit: str
    ok: bool


def rows() -> list[Row]:
    """Start both kinds of cluster in turn, and compare."""
    plain: list[float] = []
    ours: list[float] = []
    sizes: list[float] = []
    for _ in range(PAIRS):
        plain.append(_measure("plain")["seconds"])
        found = _measure("ours")
        ours.append(found["seconds"])
        sizes.append(found["megabytes"])
    ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, plain, strict=True))
    limit = LARGEST_RATIO * statistics.median(plain)
    return [
        _row("plain ipyparallel.Cluster and imports", statistics.median(plain), None, "s"),
        _row("EngineCluster, forked", statistics.median(ours), limit, "s"),
        _row("EngineCluster / plain", ratio, LARGEST_RATIO, ""),
        _row("memory (PSS) of an idle engine, largest", max(sizes), LARGEST_MEGABYTES, "MB"),
    ]


def _row(name: str, measured: float, target: float | None, unit: str) -> Row:
    ok = target is None or measured <= target
    return {"name": name, "measured": measured, "target": target, "unit": unit, "ok": ok}


def _measure(kind: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.cold_start", kind],
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _imported() -> bool:
    import importlib

    return all(importlib.import_module(name) for name in ("torch", "megatron.core"))


def _start_plain() -> dict[str, float]:
    import ipyparallel

    began = time.monotonic()
    cluster = ipyparallel.Cluster(n=ENGINES, log_level=40)
    with cluster as client:
        client.wait_for_engines(ENGINES, interactive=False)
        assert all(client[:].apply_sync(_imported))
        seconds = time.monotonic() - began
        client.send_signal(9, block=False)
    return {"seconds": seconds}


def _start_ours() -> dict[str, float]:
    from mimokit.cluster import EngineCluster

    began = time.monotonic()
    with EngineCluster(n=ENGINES, preload=MODULES, progress=False) as cluster:
        assert all(cluster.client[:].apply_sync(_imported))
        seconds = time.monotonic() - began
        time.sleep(1.0)
        sizes = [proportional_megabytes(pid) for pid in cluster.pids if pid is not None]
    return {"seconds": seconds, "megabytes": max(sizes)}


def proportional_megabytes(pid: int) -> float:
    """A process's own memory plus its share of what it shares (Linux)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"no proportional set size for process {pid}")


def main() -> None:
    """Measure one kind (for `rows`), or all and print."""
    if len(sys.argv) > 1:
        found = _start_plain() if sys.argv[1] == "plain" else _start_ours()
        print(json.dumps(found))
        return
    from benchmarks.table import show

    show(f"Starting {ENGINES} engines", rows())


if __name__ == "__main__":
    main()
