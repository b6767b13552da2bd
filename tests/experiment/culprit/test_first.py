"""What is compared with what, and by how much one process may differ from itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mimokit.experiment.culprit.first import ALLOWED, ROUNDED_STEPS, measured, spread_of
from mimokit.experiment.culprit.join import Joined, Whole
from mimokit.planning.seams import SIGNS, Seam, SeamPhase

WEIGHT = Seam(1, "language_module", "weight", SeamPhase.WEIGHT)


def _updated(change: float) -> Joined:
    """Return a weight of norm 1 before and after a step that changes it by so much."""
    joined = {}
    for seam, norm in ((replace(WEIGHT, step=0), 1.0), (WEIGHT, 1.0 + change)):
        whole = Whole()
        whole.add(0, "", 1, norm**2, np.full(SIGNS, norm))
        joined[seam] = {0: whole}
    return joined


def test_the_spread_of_a_small_update_is_all_that_changes() -> None:
    update = 2 * ROUNDED_STEPS
    one, nudged, layout = (_updated(update * times) for times in (1.0, 1.4, 1.6))
    spread = spread_of(one, [nudged])
    assert abs(spread[WEIGHT] - 0.4) < 1e-6
    (*_, found) = measured(one, layout, spread)
    assert 0 < found.difference < found.allowed == ALLOWED * spread[WEIGHT]
    (*_, found) = measured(one, layout, {})
    assert found.differs, "a rounding of a weight explains no more than that"
