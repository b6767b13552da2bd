"""What share of the suite's CPU seconds each room of the tests may take.

Shares, since seconds depend on the machine. A room that needs more takes it from the others: change
both here. `python -m tests.seconds` prints the shares of the last run.
"""

from collections.abc import Mapping

SHARES: dict[str, float] = {
    "analysis": 2.0,
    "architecture": 3.4,
    "browser": 6.2,
    "charts": 2.7,
    "cli": 3.6,
    "cluster": 6.6,
    "config": 0.9,
    "config_files": 0.8,
    "engine": 9.9,
    "experiment": 7.5,
    "extras": 7.1,
    "interop": 0.8,
    "layout_search": 3.4,
    "notebooks": 5.3,
    "pages": 0.3,
    "planning": 3.1,
    "prediction": 2.6,
    "tests": 26.8,
    "widgets": 6.8,
    "workload": 0.2,
}
"""Room -> percent of the CPU seconds of a whole run; `tests` has the claims. Empty: no check."""
MARGIN = 0.5
"""Part of its share by which a room may exceed it: other work on the machine, and a processor on
which engines cost more than imports, move shares."""
LEAST = 1.5
"""Percent by which every room may exceed its share; one that has none may take this."""


def excesses(seconds: Mapping[str, float], shares: Mapping[str, float] = SHARES) -> list[str]:
    """Return a sentence for every room that takes more than its share and the margin."""
    total = sum(seconds.values())
    if not shares or not total:
        return []
    taken = {room: 100 * cpu / total for room, cpu in seconds.items()}
    return [
        f"tests/{room} takes {taken[room]:.1f} % of the CPU seconds and may take "
        f"{allowed(shares.get(room, 0.0)):.1f} %: make its tests cheaper, or divide the shares "
        "of tests/budget.py anew"
        for room in sorted(taken)
        if taken[room] > allowed(shares.get(room, 0.0))
    ]


def allowed(share: float) -> float:
    """Return the percent at which a room with this share fails the suite."""
    return share + max(MARGIN * share, LEAST)
