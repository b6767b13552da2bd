"""Notice a run that stands still: nothing fails, and nothing comes from its ranks any more."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Mapping

TIMES = 10.0
"""How many of its own steps a run may take for one."""
LEAST_SECONDS = 60.0
"""It may take so long in any case."""
FEWEST = 3
"""Steps after which the length of a step is known."""
REMEMBERED = 100


class Progress:
    """The times at which the ranks of a run have reported."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._steps: deque[float] = deque(maxlen=REMEMBERED)
        self._told = False

    def reported(self, rank: int) -> None:
        """Samples of a rank have come."""
        now = time.monotonic()
        if rank in self._last:
            self._steps.append(now - self._last[rank])
        self._last[rank] = now
        self._told = False

    def standstill(self) -> str | None:
        """Return for how long the run has stood still, as a sentence; once per standstill."""
        if self._told or len(self._steps) < FEWEST:
            return None
        seconds = time.monotonic() - max(self._last.values())
        median = statistics.median(tuple(self._steps))
        if seconds < max(LEAST_SECONDS, TIMES * median):
            return None
        self._told = True
        return (
            f"no rank has reported anything for {seconds:.0f} s, and before that each did so "
            f"every {median:.2g} s"
        )


def places_text(stacks: Mapping[int, str | None]) -> str:
    """Return where ranks are, as text; ranks in one place are named together."""
    places: dict[str, list[int]] = {}
    for rank, stack in stacks.items():
        places.setdefault(stack or "  it does not answer\n", []).append(rank)
    return "".join(
        f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(map(str, ranks))}:\n{stack}"
        for stack, ranks in places.items()
    )
