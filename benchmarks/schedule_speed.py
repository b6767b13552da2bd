"""How long schedules take to check and to simulate: `python -m benchmarks.schedule_speed`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.table import show
from mimokit.planning.schedule import (
    Schedule,
    makespan,
    plan_schedule,
    simulate,
    stage_graph,
)

STAGES, MICROBATCHES = 64, 1024
REPEATS = 5
SETS = 1000


def rows() -> list[dict[str, Any]]:
    """Measure the median of several runs; every simulation is of a schedule not seen before."""
    seen = iter(range(MICROBATCHES, MICROBATCHES + 2 * REPEATS))
    warm = one_module(STAGES, MICROBATCHES)
    makespan(warm)
    small = one_module(8, 32)
    forward = np.random.default_rng(0).random((SETS, 8, 1))
    many = _median(lambda: makespan(small, forward, 2 * forward))
    size = f"{STAGES} stages x {MICROBATCHES:,} micro-batches"
    return [
        _row(
            f"plan, check and simulate 1F1B, {size}",
            _median(lambda: simulate(fresh(next(seen)))),
            0.5,
            "s",
        ),
        _row(f"plan and check 1F1B, {size}", _median(lambda: fresh(next(seen))), 0.5, "s"),
        _row(
            f"makespan again with other times, {size}", _median(lambda: makespan(warm)), None, "s"
        ),
        _row(
            f"makespan, 8 stages x 32, each of {SETS} sets of times", many / SETS * 1e6, None, "µs"
        ),
    ]


def one_module(stages: int, microbatches: int) -> Schedule:
    """Return the 1F1B schedule of one module."""
    return plan_schedule(stage_graph({"language": ()}, {"language": stages}), microbatches)


def fresh(microbatches: int) -> Schedule:
    """Return a schedule of about the size to be measured."""
    return one_module(STAGES, microbatches)


def _median(measured: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        measured()
        times.append(time.perf_counter() - begin)
    return sorted(times)[REPEATS // 2]


def _row(name: str, measured: float, target: float | None, unit: str) -> dict[str, Any]:
    return {
        "name": name,
        "measured": measured,
        "target": target,
        "unit": unit,
        "ok": target is None or measured <= target,
    }


if __name__ == "__main__":
    show("Schedules", rows())
