"""Whether Linux has ended processes of this machine for lack of memory."""

from __future__ import annotations

from pathlib import Path

_COUNTERS = Path("/proc/vmstat")
KILLED = "SIGKILL"
NO_MEMORY = f"{KILLED}, as this machine had no memory left"


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
