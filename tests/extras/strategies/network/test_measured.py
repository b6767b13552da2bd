"""The two constants of `Network` are those of the measurements, and hold on lines left out."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from mimokit.extras.strategies.network.network import COMPUTE_SPREAD, LINK_EFFICIENCY
from tests.extras.strategies.network.measured import ROUNDS, RUNS, Round, error
from tests.rows import rows

RATES = sorted({row.rate for row in ROUNDS})


def fitted(rows: Sequence[Round]) -> tuple[float, float]:
    """Fit both constants by the relative error of rounds, weighted by runs."""
    from scipy.optimize import least_squares

    def errors(constants: Sequence[float]) -> list[float]:
        return [math.sqrt(RUNS[row.strategy]) * error(row, *constants) for row in rows]

    efficiency, spread = least_squares(errors, [0.9, 0.1]).x
    return float(efficiency), float(spread)


def judged(rows: Sequence[Round], constants: tuple[float, float]) -> tuple[float, float]:
    errors = np.abs([error(row, *constants) for row in rows])
    return float(errors.mean()), float(errors.max())


def test_the_constants_are_the_fit() -> None:
    assert fitted(ROUNDS) == pytest.approx((LINK_EFFICIENCY, COMPUTE_SPREAD), abs=1e-3)


@rows("left_out", *RATES)
def test_a_line_that_was_left_out_is_predicted(left_out: float) -> None:
    """Measured: 5.5 % on average and 10 % at most on the fast line, 6.3 and 7.7 % on the slow."""
    constants = fitted([row for row in ROUNDS if row.rate != left_out])
    mean, most = judged([row for row in ROUNDS if row.rate == left_out], constants)
    assert mean < 0.12
    assert most < 0.25


def test_the_constants_are_needed() -> None:
    """A ring at the full rate between equal nodes misses by more, most where H is large."""
    plain = judged(ROUNDS, (1.0, 0.0))
    assert plain[0] > 2 * judged(ROUNDS, (LINK_EFFICIENCY, COMPUTE_SPREAD))[0]
    assert judged(ROUNDS, (0.5, 0.0))[1] > 0.25
