"""How long it takes to prove a plan and to shrink it: `python -m benchmarks proof_speed`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.plan_speed import colocated
from mimokit.extras.shrinking import shrunk
from mimokit.planning import plan_layout
from mimokit.planning.layout import checked_config
from mimokit.planning.proof import prove

REPEATS = 9
RANKS = 1_024, 16_384
MOST_RANKS = 4
"""Of a layout that is made small."""
TARGET = 5_000.0
"""Milliseconds."""


def rows() -> Iterator[dict[str, Any]]:
    """Yield medians of CPU time of what `verify --static` and `--shrink` do without engines."""
    for ranks in RANKS:
        config = checked_config(colocated(ranks))
        plan = plan_layout(config)
        assert prove(plan, config).passed
        yield _row(f"prove a plan of {ranks:,} ranks", lambda: prove(plan, config))  # noqa: B023
    config = checked_config(colocated(RANKS[-1]))
    assert all(small.total_world_size <= MOST_RANKS for small in shrunk(config, MOST_RANKS))
    name = f"shrink {RANKS[-1]:,} ranks to {MOST_RANKS}"
    yield _row(name, lambda: shrunk(config, MOST_RANKS))


def _row(name: str, run: Callable[[], object]) -> dict[str, Any]:
    times = []
    for _ in range(REPEATS):
        begun = time.process_time()
        run()
        times.append(time.process_time() - begun)
    median = 1e3 * statistics.median(times)
    return {
        "name": f"{name}, CPU time", "measured": median, "target": TARGET, "unit": "ms",
        "ok": median <= TARGET,
    }  # fmt: skip
