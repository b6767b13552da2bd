"""Robust fits of non-negative constants to measured seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from mimokit.config.errors import ConfigError, Problem
from mimokit.units import counted

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
    labels: Sequence[str],
) -> FittedLaw:
    """Fit seconds = sum of constant x term with constants of at least zero.

    Residuals are relative, so that short and long measurements have the same weight. The result is
    the least-squares fit to the rows near the law through a few rows that has most rows near it
    (Fischler and Bolles 1981). Nearly half of the rows may be outliers.

    Args:
        terms: term -> its value in each row.
    """
    measured = np.asarray(seconds, dtype=np.float64)
    _check(name, measured, len(terms))
    table = np.stack([np.asarray(column, dtype=np.float64) for column in terms.values()], axis=1)
    relative = table / measured[:, None]
    constants = _constants(relative)
    residuals = relative @ constants - 1
    spread = max(NORMAL_SPREAD * float(np.median(np.abs(residuals))), 1e-12)
    limit = max(OUTLIER_SPREADS * spread, OUTLIER_SHARE)
    return FittedLaw(
        name,
        dict(zip(terms, constants.tolist(), strict=True)),
        tuple(residuals.tolist()),
        tuple(labels),
        tuple(np.flatnonzero(np.abs(residuals) > limit).tolist()),
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
    from scipy.optimize import nnls  # slow to import, and only calibration needs it

    rows, terms = relative.shape
    scale = np.maximum(np.abs(relative).max(axis=0), 1e-300)
    scaled, ones = relative / scale, np.ones(rows)
    near = NEAR_SHARE * (1 + FEW_ROWS / max(rows - terms, 1))
    best = (0, 0.0), np.ones(rows, dtype=bool)
    for chosen in combinations(range(rows), terms):
        missed = np.abs(scaled @ nnls(scaled[list(chosen)], ones[:terms])[0] - 1)
        within = missed <= near
        score = int(within.sum()), -float(np.square(missed[within]).sum())
        if score > best[0]:
            best = score, within
    constants: Vector = nnls(scaled[best[1]], ones[best[1]])[0] / scale
    return constants
