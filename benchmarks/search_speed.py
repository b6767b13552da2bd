"""How long a search takes: `python -m benchmarks.search_speed`."""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.table import show
from mimokit.layout_search import SearchTask, resolve_source, search
from mimokit.layout_search.blocks import blocks
from mimokit.layout_search.cost_tables import enumerate_modules, make_tables
from mimokit.layout_search.evaluate import Scan
from mimokit.prediction import Workload
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.step_time import load_software

REPEATS = 3
GPUS = 1024
WORKLOAD = Workload(4096, 1024)
MODELS = ("llava-1.5-7b", "qwen2.5-vl-72b")
LEAST_A_SECOND = 1_000_000
MOST_SECONDS = 5.0


def rows() -> list[dict[str, Any]]:
    """Measure medians of several runs; rates and the second time are of one core's own seconds.

    A core's own seconds do not grow where others work on the machine at the same time.
    """
    found = [_rate(name) for name in MODELS]
    for name in MODELS:
        found += _search(name)
    return found


def _search(name: str) -> list[dict[str, Any]]:
    results, own = [], []
    for _ in range(REPEATS):
        began = time.process_time()
        results.append(search(name, gpus=GPUS, workload=WORKLOAD))
        own.append(time.process_time() - began)
    exhaustive = all(one.complete and not one.cut for one in results)
    what = f"search {name} on up to {GPUS:,} GPUs, all {results[0].evaluated:,} layouts"
    return [
        _row(what, statistics.median(one.seconds for one in results), exhaustive),
        _row(f"{what}, seconds of one core", statistics.median(own), exhaustive),
    ]


def _row(name: str, measured: float, exhaustive: bool) -> dict[str, Any]:
    ok = exhaustive and measured <= MOST_SECONDS
    return {"name": name, "measured": measured, "target": MOST_SECONDS, "unit": "s", "ok": ok}


def _rate(name: str) -> dict[str, Any]:
    """Measure enumeration, terms and combination of all modules, without any simulation,
    per second of one core."""
    model, workload = resolve_source(name, WORKLOAD)
    task = SearchTask(
        model, workload, GPUS, load_hardware("h100"), load_software("megatron-bridge")
    )
    rates = []
    for _ in range(REPEATS):
        began = time.process_time()
        language, encoders, _ = enumerate_modules(task)
        scan = Scan(task, make_tables(task, language, encoders), keep=32)
        for block in blocks(task, scan.tables):
            scan.see(block)
        rates.append(scan.evaluated / (time.process_time() - began))
    rate = statistics.median(rates)
    return {
        "name": f"evaluate layouts of {name} with the closed forms",
        "measured": rate,
        "target": f"at least {LEAST_A_SECOND:,} /s",
        "unit": "/s",
        "ok": rate >= LEAST_A_SECOND,
    }


if __name__ == "__main__":
    show("Search", rows())
