"""The fit against laws whose constants are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.config import ConfigError
from mimokit.plan.calibration.fit import fit_law

SIZES = np.geomspace(1e3, 1e7, 12)
CONSTANT = st.floats(1e-6, 1e-3)
RATE = st.floats(1e-11, 1e-8)


def terms() -> dict[str, list[float]]:
    return {"start": [1.0] * len(SIZES), "byte": SIZES.tolist()}


@given(CONSTANT, RATE)
@settings(max_examples=25, deadline=None)
def test_planted_constants_are_recovered(start: float, rate: float) -> None:
    found = fit_law("link", terms(), (start + rate * SIZES).tolist())
    assert found.constants["start"] == pytest.approx(start, rel=1e-6)
    assert found.constants["byte"] == pytest.approx(rate, rel=1e-6)
    assert not found.outliers
    assert found.mean_error < 1e-6


@given(CONSTANT, RATE, st.integers(0, 11), st.sampled_from([0.25, 4.0]))
@settings(max_examples=25, deadline=None)
def test_a_planted_outlier_is_reported_and_moves_nothing(
    start: float, rate: float, row: int, factor: float
) -> None:
    noise = 1 + 0.02 * np.random.default_rng(row).standard_normal(len(SIZES))
    seconds = (start + rate * SIZES) * noise
    seconds[row] *= factor
    found = fit_law("link", terms(), seconds.tolist())
    assert row in found.outliers
    assert f"row {row}" in str(found)
    law = np.array([found.constants["start"] + found.constants["byte"] * s for s in SIZES])
    assert np.abs(law / (start + rate * SIZES) - 1).max() < 0.12


def test_a_constant_that_is_not_there_is_zero_not_negative() -> None:
    found = fit_law("link", terms(), (1e-9 * SIZES**1.1).tolist())
    assert found.constants["start"] == 0


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Calibration of link: it has 1 rows for 2 constants"):
        fit_law("link", {"start": [1.0], "byte": [2.0]}, [1.0])


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_a_row_that_is_no_time_is_refused(wrong: float) -> None:
    with pytest.raises(ConfigError, match="positive number of seconds"):
        fit_law("link", {"start": [1.0, 1.0]}, [1.0, wrong])
