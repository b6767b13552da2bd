"""Robust fits of non-negative constants to measured seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mimokit.config.errors import ConfigError, Problem

TRIALS = 200
"""Random sets of rows that are tried for the start of a fit."""
KEPT_SPREADS, KEPT_SHARE = 2.5, 0.1
"""Rows take part in the final fit if their residual is within this number of spreads, or within
this share."""
OUTLIER_SPREADS, OUTLIER_SHARE = 5.0, 0.3
"""A row is an outlier if its residual exceeds both this number of spreads and this share."""
FEW_ROWS = 5.0
"""The spread of a start is widened by this number divided by (rows - constants)."""
NORMAL_SPREAD = 1.4826
"""Standard deviation of normal noise divided by its median absolute deviation."""

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class FittedLaw:
    """A linear law fitted to measurements.

    Attributes:
        constants: term -> seconds per unit of the term.
        residuals: (fitted - measured) / measured, per row.
        outliers: indices of rows that the law does not describe.
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
        text = f"{self.name}: {self.mean_error:.0%} mean error over {len(self.residuals)} rows"
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

    Residuals are relative, so that short and long measurements have the same weight. The start is
    the law through a few rows that has the least median residual (Rousseeuw 1984). The result is
    the least-squares fit to the rows near the start. Nearly half of the rows may be outliers. If
    there are few rows, the residuals of the start underestimate the noise, and more rows count as
    near (Rousseeuw and Leroy 1987, chapter 5).

    Args:
        terms: term -> its value in each row.
        seconds: measured, per row.

    Raises:
        ConfigError: there are fewer rows than terms, or a row is not a positive finite number.
    """
    measured = np.asarray(seconds, dtype=np.float64)
    _check(name, measured, len(terms))
    table = np.stack([np.asarray(column, dtype=np.float64) for column in terms.values()], axis=1)
    relative = table / measured[:, None]
    start = relative @ _least_median(relative) - 1
    kept = np.abs(start) <= max(KEPT_SPREADS * _spread_of_start(start, len(terms)), KEPT_SHARE)
    constants = _least_squares(relative[kept])
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
        sentence = f"it has {len(measured)} rows for {terms} constants; measure at least as many"
    elif not (np.isfinite(measured).all() and (measured > 0).all()):
        sentence = "every row must be a positive number of seconds; measure again"
    if sentence is not None:
        problem = Problem("calibration", name, None, f"Calibration of {name}: {sentence}.")
        raise ConfigError([problem])


def _spread(residuals: Vector) -> float:
    return max(NORMAL_SPREAD * float(np.median(np.abs(residuals))), 1e-12)


def _spread_of_start(residuals: Vector, terms: int) -> float:
    """Return the spread of residuals of a law through `terms` rows, corrected for few rows."""
    free = max(len(residuals) - terms, 1)
    return NORMAL_SPREAD * (1 + FEW_ROWS / free) * _middle(residuals, terms)


def _middle(residuals: Vector, terms: int) -> float:
    """Return the median absolute residual, adjusted for the rows that the law passes through."""
    rank = min(len(residuals) // 2 + (terms + 1) // 2, len(residuals))
    return float(np.sort(np.abs(residuals))[rank - 1])


def _outliers(residuals: Vector) -> tuple[int, ...]:
    limit = max(OUTLIER_SPREADS * _spread(residuals), OUTLIER_SHARE)
    return tuple(int(i) for i in np.flatnonzero(np.abs(residuals) > limit))


def _least_median(relative: Vector) -> Vector:
    """Return the constants of the law through a few rows with the least median residual."""
    rows, terms = relative.shape
    generator = np.random.default_rng(0)
    drawn = np.stack([generator.choice(rows, terms, replace=False) for _ in range(TRIALS)])
    tables = relative[drawn]
    solved = np.linalg.pinv(tables) @ np.ones(terms)
    candidates = np.vstack([np.maximum(solved, 0.0), _least_squares(relative)])
    missed = [_middle(residuals, terms) for residuals in candidates @ relative.T - 1]
    best: Vector = candidates[int(np.argmin(missed))]
    return best


def _least_squares(relative: Vector) -> Vector:
    """Return the constants >= 0 with the least squared distance to one."""
    from scipy.optimize import nnls  # slow to import, and only calibration needs it

    scale = np.maximum(np.abs(relative).max(axis=0), 1e-300)
    found, _ = nnls(relative / scale, np.ones(len(relative)))
    constants: Vector = found / scale
    return constants
