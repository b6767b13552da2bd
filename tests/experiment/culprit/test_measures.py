"""What is compared with what, and by how much one process may differ from itself."""

from dataclasses import replace

import numpy as np
import pytest

from mimokit.experiment.culprit.measures import ROUNDED_STEPS, measured, spread_of
from mimokit.experiment.culprit.sketches import Joined, Whole
from mimokit.experiment.tolerances import (
    ALLOWED,
    ALLOWED_OF_NOISE,
    ALLOWED_WITH_EXPERTS,
    TOLERANCE,
    UNLIKE,
    allowed_of,
)
from mimokit.planning.seams import SIGNS, Seam, SeamPhase
from tests.rows import rows

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
    assert 0 < found.difference < found.allowed == ALLOWED_OF_NOISE * spread[WEIGHT]
    (*_, found) = measured(one, layout, {})
    assert found.differs, "a rounding of a weight explains no more than that"


@rows(
    "spread, times, allowed",
    (0.0, ALLOWED, TOLERANCE),
    (0.01, ALLOWED, 0.01 * ALLOWED),
    (0.01, ALLOWED_WITH_EXPERTS, 0.01 * ALLOWED_WITH_EXPERTS),
    (0.25, ALLOWED_WITH_EXPERTS, UNLIKE),
    (1.4, ALLOWED, 1.4 * ALLOWED_OF_NOISE),
)
def test_a_tensor_unlike_the_right_one_is_not_explained_by_rounding(
    spread: float, times: float, allowed: float
) -> None:
    assert allowed_of(spread, times) == allowed


@rows("wrong", "first", "last")
def test_a_rank_with_several_parts_differs_as_its_worst_one(wrong: str) -> None:
    right, other = ({0: Whole()} for _ in range(2))
    for places, part in enumerate(("first", "last")):
        right[0].add(0, "", places, 1.0, np.ones(SIGNS))
        other[0].add(0, "", places, 1.0, np.ones(SIGNS))
        other[0].add(1, "", places, 1.0, np.full(SIGNS, 3.0 if part == wrong else 1.0))
    (found,) = measured({WEIGHT: right}, {WEIGHT: other}, {})
    assert found.ranks == (1,)
    assert found.by_rank == pytest.approx({0: 0.0, 1: 2 / 2**0.5})
