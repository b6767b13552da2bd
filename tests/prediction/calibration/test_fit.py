"""The fit against laws whose constants are known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.config import ConfigError
from mimokit.prediction.calibration import fit
from mimokit.prediction.calibration.fit import fit_law

SIZES = np.geomspace(1e3, 1e7, 12)
CONSTANT = st.floats(1e-6, 1e-3)
RATE = st.floats(1e-11, 1e-8)


def terms() -> dict[str, list[float]]:
    return {"start": [1.0] * len(SIZES), "byte": SIZES.tolist()}


@given(CONSTANT, RATE)
@settings(max_examples=25)
def test_planted_constants_are_recovered(start: float, rate: float) -> None:
    found = fit_law("link", terms(), (start + rate * SIZES).tolist())
    assert found.constants["start"] == pytest.approx(start, rel=1e-6)
    assert found.constants["byte"] == pytest.approx(rate, rel=1e-6)
    assert not found.outliers
    assert found.mean_error < 1e-6


def planted(start: float, rate: float, row: int, factor: float) -> list[float]:
    """Times of a law with noise of 2 %, one of them wrong by a factor."""
    noise = 1 + 0.02 * np.random.default_rng(row).standard_normal(len(SIZES))
    seconds = (start + rate * SIZES) * noise
    seconds[row] *= factor
    return [float(each) for each in seconds]


@given(CONSTANT, RATE, st.integers(0, 11), st.sampled_from([0.25, 4.0]))
@settings(max_examples=25)
def test_a_planted_outlier_is_reported(start: float, rate: float, row: int, factor: float) -> None:
    found = fit_law("link", terms(), planted(start, rate, row, factor))
    assert row in found.outliers
    assert f"row {row}" in str(found)


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_a_planted_outlier_rarely_moves_the_law(factor: float) -> None:
    """If few rows determine a constant, an outlier among them moves it: nine of ten laws hold."""
    random = np.random.default_rng(0)
    moved = []
    for row in np.tile(np.arange(12), 6):
        start, rate = 10 ** random.uniform(-6, -3), 10 ** random.uniform(-11, -8)
        found = fit_law("link", terms(), planted(start, rate, int(row), factor)).constants
        law = found["start"] + found["byte"] * SIZES
        moved.append(np.abs(law / (start + rate * SIZES) - 1).max())
    assert np.quantile(moved, 0.9) < 0.05


def test_few_noisy_rows_are_all_taken_into_account() -> None:
    """A law of three constants goes through three of five rows whatever they are."""
    sizes = np.array([4.0, 512.0, 16_384.0, 131_072.0, 524_288.0])
    laws = {"call": [1.0] * 5, "segment": [1.0, 8.0, 8.0, 8.0, 8.0], "byte": sizes.tolist()}
    noise = np.array([1.0, 1.0, 1.2, 0.85, 1.1])
    seconds = (6e-4 + 7e-5 * np.array(laws["segment"]) + 2e-9 * sizes) * noise
    found = fit_law("all-reduce", laws, seconds.tolist())
    assert max(map(abs, found.residuals)) < 0.25


def test_a_constant_that_is_not_there_is_zero_not_negative() -> None:
    found = fit_law("link", terms(), (1e-9 * SIZES**1.1).tolist())
    assert found.constants["start"] == 0


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Calibration of link: it has 1 row for 2 constants"):
        fit_law("link", {"start": [1.0], "byte": [2.0]}, [1.0])


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_a_row_that_is_no_time_is_refused(wrong: float) -> None:
    with pytest.raises(ConfigError, match="positive number of seconds"):
        fit_law("link", {"start": [1.0, 1.0]}, [1.0, wrong])


@pytest.mark.parametrize("near", [1e9, -1.0])
@given(st.integers(1, 4), st.integers(0, 8), st.integers(0, 2**32 - 1))
@settings(max_examples=50)
def test_no_set_of_constants_is_nearer(near: float, terms: int, more_rows: int, seed: int) -> None:
    """Constants are those of the best among all sets of terms that may be above zero.

    All rows take part: those of a law that is near every row, and those without any near law.
    """
    table = np.random.default_rng(seed).normal(0.3, 1.0, (terms + more_rows, terms))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "NEAR_SHARE", near)
        found = fit._constants(table)
    ones = np.ones(len(table))
    least = float(len(table))
    for size in range(1, terms + 1):
        for chosen in itertools.combinations(range(terms), size):
            solved = np.linalg.lstsq(table[:, chosen], ones, rcond=None)[0]
            if (solved >= 0).all():
                missed = float(np.square(table[:, chosen] @ solved - ones).sum())
                least = min(least, missed)
    assert (found >= 0).all()
    assert float(np.square(table @ found - ones).sum()) == pytest.approx(least, abs=1e-9)
