"""Robust fits of non-negative constants to measured seconds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mimokit.config.errors import ConfigError, Problem
from mimokit.units import counted

TRIALS = 200
"""Random sets of rows that are tried for the start of a fit."""
NEAR_SHARE, FEW_ROWS = 0.1, 4.0
"""Rows take part in a fit if their residual is within this share, widened by the second number
divided by (rows - constants): a law through a few noisy rows is further from the others."""
OUTLIER_SPREADS, OUTLIER_SHARE = 5.0, 0.3
"""A row is an outlier if its residual exceeds both this number of spreads and this share."""
NORMAL_SPREAD = 1.4826
"""Standard deviation of normal noise divided by its median absolute deviation."""

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class FittedLaw:
    """A linear law fitted to measurements.

    Attributes:
        residuals: (fitted - measured) / measured, per row.
    """

    name: str
    constants: Mapping[str, float]
    residuals: tuple[float, ...]
    labels: tuple[str, ...]
    outliers: tuple[int, ...]

    @property
    def mean_error(self) -> float:
        """Mean absolute residual, including outliers."""
        return float(np.mean(np.abs(self.residuals)))

    @property
    def worst(self) -> str:
        """Label of the row with the largest residual."""
        return self.labels[int(np.argmax(np.abs(self.residuals)))]

    def __str__(self) -> str:
        text = (
            f"{self.name}: {self.mean_error:.0%} mean error over "
            f"{counted(len(self.residuals), 'row')}"
        )
        if not self.outliers:
            return text
        named = ", ".join(f"{self.labels[i]} ({self.residuals[i]:+.0%})" for i in self.outliers)
        return f"{text}; does not hold for {named}"


def fit_law(
    name: str,
    terms: Mapping[str, Sequence[float]],
    seconds: Sequence[float],
    labels: Sequence[str] | None = None,
) -> FittedLaw:
    """Fit seconds = sum of constant x term with constants of at least zero.

    Residuals are relative, so that short and long measurements have the same weight. The result is
    the least-squares fit to the rows near the law that has most rows near it (RANSAC, Fischler and
    Bolles 1981). Nearly half of the rows may be outliers.

    Args:
        terms: term -> its value in each row.

    Raises:
        ConfigError: there are fewer rows than terms, or a row is not a positive finite number.
    """
    measured = np.asarray(seconds, dtype=np.float64)
    _check(name, measured, len(terms))
    table = np.stack([np.asarray(column, dtype=np.float64) for column in terms.values()], axis=1)
    relative = table / measured[:, None]
    constants = _constants(relative)
    residuals = relative @ constants - 1
    return FittedLaw(
        name,
        dict(zip(terms, (float(value) for value in constants), strict=True)),
        tuple(float(value) for value in residuals),
        tuple(labels) if labels is not None else tuple(f"row {i}" for i in range(len(measured))),
        _outliers(residuals),
    )


def _check(name: str, measured: Vector, terms: int) -> None:
    sentence = None
    if len(measured) < terms:
        sentence = (
            f"it has {counted(len(measured), 'row')} for {terms} constants; measure at least as "
            "many"
        )
    elif not (np.isfinite(measured).all() and (measured > 0).all()):
        sentence = "every row must be a positive number of seconds; measure again"
    if sentence is not None:
        problem = Problem("calibration", name, None, f"Calibration of {name}: {sentence}.")
        raise ConfigError([problem])


def _constants(relative: Vector) -> Vector:
    """Return constants >= 0 whose sums over the terms of most rows [rows, terms] are near one."""
    # Slow to import, and only calibration needs it.
    from sklearn import config_context
    from sklearn.exceptions import UndefinedMetricWarning
    from sklearn.linear_model import LinearRegression, RANSACRegressor

    rows, terms = relative.shape
    scale = np.maximum(np.abs(relative).max(axis=0), 1e-300)
    scaled, ones = relative / scale, np.ones(rows)
    law = LinearRegression(fit_intercept=False, positive=True)
    near = NEAR_SHARE * (1 + FEW_ROWS / max(rows - terms, 1))
    consensus = RANSACRegressor(
        law, min_samples=terms, residual_threshold=near,
        max_trials=TRIALS, stop_probability=1.0, random_state=0,
    )  # fmt: skip
    try:
        # Checks of arguments in each trial take longer than the fits.
        with (
            config_context(assume_finite=True, skip_parameter_validation=True),
            warnings.catch_warnings(),
        ):
            # The score of a law that is near a single row.
            warnings.simplefilter("ignore", UndefinedMetricWarning)
            law = consensus.fit(scaled, ones).estimator_
    except ValueError:  # no law is near any row
        law = law.fit(scaled, ones)
    constants: Vector = law.coef_ / scale
    return constants


def _outliers(residuals: Vector) -> tuple[int, ...]:
    spread = max(NORMAL_SPREAD * float(np.median(np.abs(residuals))), 1e-12)
    limit = max(OUTLIER_SPREADS * spread, OUTLIER_SHARE)
    return tuple(int(i) for i in np.flatnonzero(np.abs(residuals) > limit))
