"""Seconds until a rank that does nothing is named: `python -m benchmarks.idle_ranks`.

Four ranks all-reduce without end. One waits for a lock, polls, sleeps or is stopped; or the cable
of its host is cut, and training goes on when it is back. Limits are not stretched by the load of
the machine, which is the harder case for a machine that is busy.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.table import show
from mimokit.cluster import ClusterRun, EngineCluster, RankFrozen, link, standstill
from mimokit.experiment import train
from tests.cluster.functions import all_reduce_forever, process_id
from tests.layouts import digits_config
from tests.network_hosts import Host, cut_off, engines_on, network_of, why_no_hosts

RANKS, TROUBLED = 4, 2
TROUBLES = {"lock": "waits for itself", "poll": "polls in a deadlock", "nap": "sleeps and polls"}
MOST_SECONDS = 10.0


def seconds_until_named(run: ClusterRun, begin: Callable[[], None] = lambda: None) -> float:
    """Return the time from the last sample, or from what `begin` does, until the error.

    Args:
        run: in which a rank does nothing after a while.
        begin: makes it do nothing.
    """
    last = time.monotonic()

    def hear(sample: object) -> None:
        nonlocal last
        last = time.monotonic()

    run.on_sample(hear)
    run.end_idle()
    while run.sample_count < 10 * RANKS:
        time.sleep(0.01)
    begin()
    with contextlib.suppress(RankFrozen):
        run.result()
    return time.monotonic() - last


def of_code(cluster: EngineCluster) -> Iterator[dict[str, Any]]:
    """Yield the time until each kind of deadlock is named, and a stopped process."""
    for trouble, what in TROUBLES.items():
        cluster.form_world(RANKS)
        run = cluster.submit(all_reduce_forever, trouble, TROUBLED, 1.0)
        yield _row(f"a rank that {what} is named", seconds_until_named(run))
    pids = cluster.run(process_id, world_size=RANKS)
    run = cluster.submit(all_reduce_forever, "none", TROUBLED)
    stopped = seconds_until_named(run, lambda: os.kill(pids[TROUBLED], signal.SIGSTOP))
    yield _row("a rank that is stopped is named", stopped)


def of_a_cable(cluster: EngineCluster, cut: Host, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the time until a rank behind a cut cable is named, and until the next step then."""
    config = digits_config((1, 4), (2, 2), num_iterations=60)
    run = train(cluster, config, directory=folder, checkpoints=10, restarts=1)
    first = cluster.current_run
    assert first is not None
    while first.sample_count < 10 * RANKS:
        time.sleep(0.01)
    with cut_off(cut):
        began = time.monotonic()
        with contextlib.suppress(RankFrozen):
            first.result()
        yield _row(f"a cut cable is named: {_error(first)}", time.monotonic() - began)
    began, before = time.monotonic(), len(run.samples)
    while len(run.samples) == before:
        time.sleep(0.01)
    yield _row("its cable is back until the next step", time.monotonic() - began, None)
    run.result()


def _error(run: ClusterRun) -> str:
    return str(run._error).split(";")[0]


def _row(name: str, seconds: float, most: float | None = MOST_SECONDS) -> dict[str, Any]:
    print(f"{name}: {seconds:.1f} s", flush=True)
    reached = most is None or seconds <= most
    return {"name": name, "measured": seconds, "target": most, "unit": "s", "ok": reached}


def rows() -> Iterator[dict[str, Any]]:
    """Yield the figures of the table."""
    with contextlib.ExitStack() as stack:
        for module in (standstill, link):
            stack.enter_context(patch.object(module, "slowdown", lambda: 1.0))
        if not why_no_hosts():
            address, hosts = stack.enter_context(network_of(["left", "right"]))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mk")))
            with (
                engines_on(address, [*hosts, *hosts], folder) as file,
                EngineCluster(RANKS, cluster_file=file, progress=False) as cluster,
            ):
                yield from of_a_cable(cluster, hosts[1], folder / "results")
        with EngineCluster(RANKS) as cluster:
            yield from of_code(cluster)


if __name__ == "__main__":
    show("Ranks that do nothing", rows())
