"""How much longer than on an idle machine a healthy process may take to answer."""

import os
from pathlib import Path

LOAD = Path("/proc/loadavg")
"""Its fourth word is "ready/all", in processes and threads."""
MOST = 10.0
"""The largest factor: a limit of 30 s becomes 5 minutes, and ends nevertheless."""


def slowdown() -> float:
    """Return how many processes of this host share a core now, from 1 to `MOST`.

    A limit in seconds for something that a process does is multiplied by it.
    """
    load = max(_average_load(), _ready_now())
    return min(max(1.0, load / (os.cpu_count() or 1)), MOST)


def _average_load() -> float:
    """Processes that were ready to run, on average in the last minute; 0 if not known."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


def _ready_now() -> float:
    """Others that are ready to run now, of which the average tells late; 0 if not known."""
    try:
        ready, _ = LOAD.read_text().split()[3].split("/")
        return int(ready) - 1.0
    except (OSError, LookupError, ValueError):  # this system does not say
        return 0.0
