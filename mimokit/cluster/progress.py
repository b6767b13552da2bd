"""Notice a run that stands still: nothing fails, and nothing comes from its ranks any more."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Mapping

from mimokit.cluster.worker.stack import Place

TIMES = 10.0
"""How many of its own steps a run may take for one."""
LEAST_SECONDS = 60.0
"""It may take so long in any case."""
FEWEST = 3
"""Steps after which the length of a step is known."""
REMEMBERED = 100


class Progress:
    """The times at which the ranks of a run have reported.

    Attributes:
        told: whether the standstill in progress was reported to the user.
    """

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._steps: deque[float] = deque(maxlen=REMEMBERED)
        self.told = False

    def reported(self, rank: int) -> None:
        """Samples of a rank have come."""
        now = time.monotonic()
        if rank in self._last:
            self._steps.append(now - self._last[rank])
        self._last[rank] = now
        self.told = False

    @property
    def step(self) -> float | None:
        """The seconds that a step takes, None where that is not known yet."""
        steps = tuple(self._steps)
        return statistics.median(steps) if len(steps) >= FEWEST else None

    @property
    def silence(self) -> float:
        """Seconds since any rank has reported; 0 before the first time."""
        return time.monotonic() - max(self._last.values()) if self._last else 0.0

    def standstill(self) -> str | None:
        """Return for how long the run has stood still, as a sentence; None once it was told."""
        step, silence = self.step, self.silence
        if self.told or step is None or silence < max(LEAST_SECONDS, TIMES * step):
            return None
        return (
            f"no rank has reported anything for {silence:.0f} s, and before that each did so "
            f"every {step:.2g} s"
        )


def places_text(places: Mapping[int, Place | None]) -> str:
    """Return where ranks are, as text; ranks in one place are named together."""
    alike: dict[str, list[int]] = {}
    for rank, place in places.items():
        stack = place.stack if place is not None else ""
        alike.setdefault(stack or "  it does not answer\n", []).append(rank)
    return "".join(
        f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(map(str, ranks))}:\n{stack}"
        for stack, ranks in alike.items()
    )
