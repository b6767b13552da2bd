"""How far predictions are from measurements: errors, order, and the layout they would pick."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.prediction.doubt import printed_peak_bytes
from benchmarks.prediction.fit import (
    constants_for,
    hardware_with,
    software_with,
)
from benchmarks.prediction.folds import FITTED_MODELS, Kind, fold_name
from benchmarks.prediction.predicted import predict_seconds
from benchmarks.prediction.rows import Measured

Floats = NDArray[np.float64]
NOISE = 0.03
"""Share by which the same configuration differs between releases: closer times are ties."""


@dataclass(frozen=True)
class Score:
    """Errors of some rows, as shares.

    Attributes:
        name: what the rows have in common.
        errors: predicted over measured, less 1, with constants that never saw the row's model.
        shipped: the same with the shipped constants.
        rows: what was measured.
    """

    name: str
    errors: Floats
    shipped: Floats
    rows: tuple[Measured, ...] = field(repr=False, default=())

    @property
    def mean(self) -> float:
        """Mean absolute error in percent."""
        return float(100 * np.abs(self.errors).mean())

    @property
    def worst(self) -> str:
        """The row missed by most."""
        return self.rows[int(np.abs(self.errors).argmax())].label

    @property
    def summary(self) -> dict[str, object]:
        """What is printed and written."""
        return {
            "rows": len(self.errors),
            "mean_percent": self.mean,
            "bias_percent": float(100 * self.errors.mean()),
            "largest_percent": float(100 * np.abs(self.errors).max()),
            "largest_row": self.worst,
            "mean_percent_shipped_constants": float(100 * np.abs(self.shipped).mean()),
        }


def predictions(rows: Sequence[Measured], kind: Kind = "family") -> tuple[Floats, Floats]:
    """Return seconds with constants fitted without each row's fold, and with those shipped."""
    shipped = predict_seconds(rows)
    apart = shipped.copy()
    groups: dict[str | None, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[fold_name(kind, row) if row.name in FITTED_MODELS else None].append(index)
    for name, members in groups.items():
        chosen = [rows[index] for index in members]
        if name is not None:
            constants = constants_for(chosen[0], kind)
            apart[members] = predict_seconds(
                chosen, hardware_with(constants), software_with(constants)
            )
    return apart, shipped


def kind_of(row: Measured) -> str:
    """Return the group that a row's error counts in."""
    if row.table != "published-performance":
        return row.table
    if row.software == "megatron-2021":
        return "published GPT on A100"
    kind = "dense" if row.model.net.moe is None else "MoE"
    stack = "" if row.stack == "bridge" else f" ({row.stack})"
    return f"{kind} {row.hardware} {row.precision}{stack}"


def scores(rows: Sequence[Measured], apart: Floats, shipped: Floats) -> list[Score]:
    """Return a score per table, GPU, precision and kind of model."""
    measured = np.array([row.seconds for row in rows], dtype=float)
    groups: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[kind_of(row)].append(index)
    return [
        Score(
            name,
            apart[members] / measured[members] - 1,
            shipped[members] / measured[members] - 1,
            tuple(rows[index] for index in members),
        )
        for name, members in sorted(groups.items())
    ]


@dataclass(frozen=True)
class Order:
    """Whether layouts of one workload come in the measured order.

    Attributes:
        workload: its name.
        table: the file it is from.
        layouts: how many were measured.
        spearman: rank correlation of predicted and measured time.
        ties_aside: the same if layouts that are measured as ties came in the predicted order.
        wrong: pairs of layouts that are predicted in the other order than measured.
        wrong_ties: of them, those that are measured as ties.
        regret: how much longer the layout predicted best takes than the one measured best.
        swapped: the layout that was measured faster, and the one that is predicted faster, of the
            pair whose order is missed by most; equal where none is.
        apart: share by which the measured times of that pair differ.
    """

    workload: str
    table: str
    layouts: int
    spearman: float
    regret: float
    swapped: tuple[str, str] = ("", "")
    apart: float = 0.0
    ties_aside: float = 1.0
    wrong: int = 0
    wrong_ties: int = 0


def orders(rows: Sequence[Measured], apart: Floats, least: int = 4) -> list[Order]:
    """Return the order within each workload that has at least `least` different layouts.

    Rows that differ in the release of the software alone count as one layout, with the median time.
    """
    groups: dict[tuple[str, str], dict[object, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, row in enumerate(rows):
        groups[row.table, row.workload][row.sizes].append(index)
    found: list[Order] = []
    for (table, workload), layouts in groups.items():
        if len(layouts) < least:
            continue
        measured = np.array([_median(rows, members) for members in layouts.values()])
        predicted = np.array([np.median(apart[members]) for members in layouts.values()])
        regret = float(measured[predicted.argmin()] / measured.min() - 1)
        faster, slower = _swapped(measured, predicted)
        names = [rows[members[0]].label for members in layouts.values()]
        found.append(
            Order(
                workload,
                table,
                len(layouts),
                _correlation(measured, predicted),
                regret,
                (names[faster], names[slower]),
                float(measured[slower] / measured[faster] - 1),
                _correlation(_ranks_ties_aside(measured, predicted), predicted),
                *_wrong_pairs(measured, predicted),
            )
        )
    return found


def _correlation(measured: Floats, predicted: Floats) -> float:
    """Return Spearman's correlation, free of rounding: 0.9 is not to come out as 0.8999…"""
    from scipy.stats import spearmanr

    return round(float(spearmanr(measured, predicted).statistic), 9)


def _tied(measured: Floats) -> NDArray[np.bool_]:
    """Return the pairs of layouts whose times differ by less than the measurement error."""
    return np.abs(np.log(measured[:, None] / measured[None, :])) < np.log1p(NOISE)


def _ranks_ties_aside(measured: Floats, predicted: Floats) -> Floats:
    """Return how many layouts are faster than each; of tied ones those that are predicted so."""
    tied = _tied(measured)
    faster = np.where(tied, predicted < predicted[:, None], measured < measured[:, None])
    return np.asarray(faster.sum(axis=1), dtype=float)


def _wrong_pairs(measured: Floats, predicted: Floats) -> tuple[int, int]:
    """Return the pairs in the other order than measured, and how many of them are tied."""
    said = predicted[:, None] - predicted[None, :]
    wrong = (measured[:, None] - measured[None, :]) * said < 0
    return int(wrong.sum()) // 2, int((wrong & _tied(measured)).sum()) // 2


def _swapped(measured: Floats, predicted: Floats) -> tuple[int, int]:
    """Return the pair whose order is missed by most: the one measured faster comes first."""
    really = np.log(measured[None, :] / measured[:, None])
    said = np.log(predicted[:, None] / predicted[None, :])
    missed = np.minimum(np.maximum(really, 0), np.maximum(said, 0))
    first, second = np.unravel_index(int(missed.argmax()), missed.shape)
    return int(first), int(second)


def _median(rows: Sequence[Measured], members: Iterable[int]) -> float:
    return float(np.median([rows[index].seconds or np.nan for index in members]))


def memory_errors(rows: Sequence[Measured]) -> Mapping[str, float]:
    """Return the share by which the predicted peak of each measured run is off, by its label."""
    return {
        f"{row.label} seq {row.seq}": printed_peak_bytes(row) / 2**30 / row.memory_gib - 1
        for row in rows
        if row.memory_gib
    }
