"""Which engines on this host are stopped (by SIGSTOP, for example) and do not run."""

from __future__ import annotations

import time

import psutil

from mimokit.cluster.world import EngineFacts

FROZEN_SECONDS = 10.0
"""How long an engine may be stopped before it is killed and replaced.

Its peers are patient for longer: their collectives wait for 30 s by default.
"""
LOOK_SECONDS = 0.25
"""How often a run looks at the ranks that it waits for."""
LOOKS, PAUSE_SECONDS = 10, 0.02
"""At a process that does not answer, and the time between two of them."""
SAME_START = 1.0
"""Seconds within which two readings of the start of one process agree."""


def is_stopped(pid: int | None) -> bool:
    """Whether a process of this host is there, but stopped by a signal."""
    if pid is None:
        return False
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def computes(pid: int | None) -> bool:
    """Whether the main thread of a process of this host runs, or would if a core was free."""
    if pid is None:
        return False
    try:
        process = psutil.Process(pid)
        runs = 0
        for _ in range(LOOKS):
            runs += bool(process.status() == psutil.STATUS_RUNNING)
            time.sleep(PAUSE_SECONDS)
    except psutil.Error:
        return False
    return 2 * runs >= LOOKS


def pid_here(facts: EngineFacts, host: str) -> int | None:
    """The process id of an engine that others have started, None if it is not on this host.

    Two containers can have the same host name and different processes: the engine is the process
    with its id only if that began when the engine did.
    """
    if facts.host != host:
        return None
    try:
        began = psutil.Process(facts.pid).create_time()
    except psutil.Error:
        return None
    return facts.pid if abs(began - facts.began) < SAME_START else None


class FrozenWatch:
    """Tells short pauses of processes from long ones; asked again and again."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def stopped(self, pid: int | None) -> float | None:
        """For how many seconds a process has been seen stopped; None if it runs."""
        if pid is None or not is_stopped(pid):
            self._since.pop(pid or 0, None)
            return None
        now = time.monotonic()
        return now - self._since.setdefault(pid, now)

    def frozen(self, pid: int | None) -> bool:
        """Whether a process is stopped, and has been for `FROZEN_SECONDS`."""
        seconds = self.stopped(pid)
        return seconds is not None and seconds >= FROZEN_SECONDS
