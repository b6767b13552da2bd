"""How much longer than on an idle machine a healthy process may take to answer."""

from __future__ import annotations

import os

MOST = 10.0
"""The largest factor: a limit of 30 s becomes 5 minutes, and ends nevertheless."""


def slowdown() -> float:
    """Return how many processes of this host share a core now, from 1 to `MOST`.

    A limit in seconds for something that a process does is multiplied by it.
    """
    try:
        load = os.getloadavg()[0]
    except OSError:  # this system does not say
        return 1.0
    return min(max(1.0, load / (os.cpu_count() or 1)), MOST)
