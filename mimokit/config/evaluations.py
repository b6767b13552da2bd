"""When and on how much a run is tested."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Evaluations:
    """When and on how much a run is tested.

    Attributes:
        interval: iterations between two tests, 0 for one at the end only.
        samples: held-out samples of each test but the last.
        final_samples: held-out samples of the last.
    """

    interval: int = 0
    samples: int = 256
    final_samples: int = 1024

    def due(self, iteration: int, iterations: int) -> bool:
        """Tell whether to test after an iteration (0-based) that is not the last."""
        last = iteration + 1 >= iterations
        return self.interval > 0 and (iteration + 1) % self.interval == 0 and not last
