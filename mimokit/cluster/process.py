"""What the system tells of processes of this host."""

import time
from pathlib import Path

import psutil

from mimokit.cluster.symptoms import KILLED, NO_MEMORY, SYMPTOMS
from mimokit.cluster.world import EngineFacts

LOOKS, PAUSE_SECONDS = 10, 0.02
"""At a process that does not answer, and the time between two of them."""
SAME_START = 1.0
"""Seconds within which two readings of the start of one process agree."""
_COUNTERS = Path("/proc/vmstat")


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


def kernel_kills() -> int:
    """Return how many processes Linux has ended for lack of memory so far; 0 where unknown."""
    try:
        lines = _COUNTERS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def cause_of_death(signal: str | None, kills_before: int) -> str | None:
    """Return the signal that has ended a process here, with its cause where that is known.

    Args:
        kills_before: `kernel_kills()` when the process was still there.
    """
    return NO_MEMORY if signal == KILLED and kernel_kills() > kills_before else signal


class StoppedProcesses:
    """Tells short pauses of processes from long ones; asked again and again."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def seconds(self, pid: int | None) -> float | None:
        """For how long a process has been seen stopped; None if it runs."""
        if pid is None or not is_stopped(pid):
            self._since.pop(pid or 0, None)
            return None
        now = time.monotonic()
        return now - self._since.setdefault(pid, now)

    def too_long(self, pid: int | None) -> bool:
        """Whether a process is stopped, and has been for as long as the table says."""
        seconds = self.seconds(pid)
        return seconds is not None and seconds >= SYMPTOMS["stopped"].after
