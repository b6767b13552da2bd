"""Seconds until the client knows that a rank failed: `python -m benchmarks.failure_reports`.

Eight ranks all-reduce without end. One of them raises, is killed or is frozen; then the next run is
timed, which replaces the engine where that is needed.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.table import show
from mimokit.cluster import ClusterError, EngineCluster
from tests.cluster.functions import all_reduce_forever, process_id

RANKS, REPEATS = 8, 5
TROUBLED = 3
MOST_SECONDS_KILLED = 3.0


def seconds_until_reported(cluster: EngineCluster, number: int) -> tuple[float, float]:
    """Return the seconds from a signal to a rank until the error, and those of the next run."""
    cluster.run(process_id, world_size=RANKS)
    run = cluster.submit(all_reduce_forever, "none", TROUBLED)
    while len(run.samples) < 2 * RANKS:
        time.sleep(0.01)
    pid = cluster.pids[TROUBLED]
    assert pid is not None
    started = time.monotonic()
    os.kill(pid, number)
    return _timed(lambda: run.result(), started), _timed(lambda: cluster.run(process_id))


def seconds_until_raised(cluster: EngineCluster) -> tuple[float, float]:
    """Return the seconds from an exception on a rank until the error, and those of the next run."""
    cluster.run(process_id, world_size=RANKS)
    after = 1.0
    started = time.monotonic()
    raised = _timed(lambda: cluster.run(all_reduce_forever, "raise", TROUBLED, after), started)
    return max(0.0, raised - after), _timed(lambda: cluster.run(process_id))


def _timed(call: Callable[[], object], started: float | None = None) -> float:
    began = time.monotonic() if started is None else started
    try:
        call()
    except ClusterError:
        if started is None:
            raise
    return time.monotonic() - began


def rows() -> list[dict[str, Any]]:
    """Measure; each kind of failure several times, a frozen rank once."""
    table = []
    with EngineCluster(RANKS) as cluster:
        kinds: list[tuple[str, int, Callable[[], tuple[float, float]]]] = [
            ("raises", REPEATS, lambda: seconds_until_raised(cluster)),
            ("is killed", REPEATS, lambda: seconds_until_reported(cluster, signal.SIGKILL)),
            ("is frozen", 1, lambda: seconds_until_reported(cluster, signal.SIGSTOP)),
        ]
        for what, repeats, measure in kinds:
            found = [measure() for _ in range(repeats)]
            reported = [one[0] for one in found]
            limit = MOST_SECONDS_KILLED if what == "is killed" else None
            table.append(
                {
                    "name": f"a rank of {RANKS} {what}: until the error, median of {repeats}, "
                    f"longest {max(reported):.2f} s",
                    "measured": statistics.median(reported),
                    "target": limit,
                    "unit": "s",
                    "ok": limit is None or max(reported) <= limit,
                }
            )
            after = [one[1] for one in found]
            table.append(
                {
                    "name": f"a rank of {RANKS} {what}: the next run, median of {repeats}",
                    "measured": statistics.median(after),
                    "target": None,
                    "unit": "s",
                    "ok": True,
                }
            )
    return table


if __name__ == "__main__":
    show("Failures", rows())
