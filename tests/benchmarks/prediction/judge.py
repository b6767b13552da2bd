"""All that is judged, against its targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.prediction.gains import FILE as GAINS
from tests.benchmarks.prediction.gains import Gain, read_gains
from tests.benchmarks.prediction.misses import gain_misses, order_misses, step_misses
from tests.benchmarks.prediction.rows import A100, PUBLISHED, read
from tests.benchmarks.prediction.score import (
    Order,
    Score,
    memory_errors,
    orders,
    predictions,
    scores,
)
from tests.benchmarks.prediction.tables import DataError

Row = dict[str, Any]
STEP_TARGETS = {
    "dense": 8.0,
    "MoE": 12.0,
    "a100-measured-steps (multi-node)": 12.8,
    "a100-measured-steps (single-node)": 20.0,
}
"""First words of a group -> mean error in percent; of GPT on other A100s none was set."""
LEAST_ORDER, MOST_POINTS = 0.9, 5.0
"""Spearman's correlation within a workload, and the mean difference of gains in points."""


@dataclass(frozen=True)
class Judgement:
    """What a folder of measurements says about the predictor.

    Attributes:
        scores: errors of step time per group.
        orders: order of layouts per workload.
        gains: gains of colocated and heterogeneous over homogeneous layouts.
        memory: run -> error of its peak memory.
        skipped: why rows were left out -> how many.
    """

    scores: tuple[Score, ...]
    orders: tuple[Order, ...]
    gains: tuple[Gain, ...]
    memory: Mapping[str, float]
    skipped: Mapping[str, int]

    def rows(self) -> list[Row]:
        """Return name, measured, target, unit and ok of everything that has a target."""
        found = [
            _row(f"step time: {score.name}", score.mean, target, "% mean")
            for score in self.scores
            for start, target in STEP_TARGETS.items()
            if score.name.startswith(start)
        ]
        for table in sorted({one.table for one in self.orders}):
            correlations = [one.spearman for one in self.orders if one.table == table]
            found += [
                _row(f"lowest Spearman: {table}", min(correlations), LEAST_ORDER, "", least=True),
                _row(
                    f"median Spearman: {table}",
                    float(np.median(correlations)),
                    LEAST_ORDER,
                    "",
                    True,
                ),
            ]
        beyond = [gain for gain in self.gains if gain.counts]
        if beyond:
            signs = 100.0 * sum(gain.right for gain in beyond) / len(beyond)
            size = float(np.mean([abs(one.measured - one.predicted) for one in self.gains]))
            found.append(_row("signs of gains beyond 3 %", signs, 100.0, "% right", least=True))
            found.append(_row("size of gains", size, MOST_POINTS, "points mean"))
        if self.memory:
            error = 100 * float(np.mean(np.abs(list(self.memory.values()))))
            found.append(_row("peak memory", error, 5.0, "% mean"))
        return found

    def misses(self) -> list[str]:
        """Return where targets are missed and which effect is likely why."""
        found: list[str] = []
        for score in self.scores:
            for start, target in STEP_TARGETS.items():
                if score.name.startswith(start) and score.mean > target:
                    found += step_misses(score, target)
        for table in sorted({one.table for one in self.orders}):
            found += order_misses([one for one in self.orders if one.table == table], LEAST_ORDER)
        size = [abs(one.measured - one.predicted) for one in self.gains]
        if size and float(np.mean(size)) > MOST_POINTS:
            found += gain_misses(self.gains, MOST_POINTS)
        return found

    def bands(self, share: float = 0.8) -> dict[str, float]:
        """Return the error that a share of the rows stays below, for dense models and for mixtures.

        Rows of later GPUs alone: those of A100s are many and are missed by less.
        """
        found: dict[str, float] = {}
        for kind in ("dense", "MoE"):
            errors = [np.abs(one.errors) for one in self.scores if one.name.startswith(kind)]
            if errors:
                found[kind] = float(np.quantile(np.concatenate(errors), share))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "targets": self.rows(),
            "step_time": {score.name: score.summary for score in self.scores},
            "bands_of_four_in_five": self.bands(),
            "orders": [asdict(one) for one in self.orders],
            "gains": [{**asdict(one), "sign_right": one.right} for one in self.gains],
            "memory": dict(self.memory),
            "misses": self.misses(),
            "rows_left_out": dict(self.skipped),
        }


def _row(name: str, measured: float, target: float, unit: str, least: bool = False) -> Row:
    ok = measured >= target if least else measured <= target
    word = "at least" if least else "at most"
    return {
        "name": name,
        "measured": measured,
        "target": f"{word} {target:g} {unit}".strip(),
        "unit": unit,
        "ok": bool(ok),
    }


def judge(folder: Path) -> Judgement:
    """Judge the predictor by the tables of a folder.

    Raises:
        DataError: the folder has none of the tables, or one lacks a column.
    """
    if not any((folder / name).exists() for name in (PUBLISHED, A100, GAINS)):
        raise DataError(f"{folder}: there is none of {PUBLISHED}, {A100} and {GAINS}.")
    rows, skipped = read(folder)
    timed = [row for row in rows if row.seconds]
    apart, shipped = predictions(timed)
    return Judgement(
        tuple(scores(timed, apart, shipped)),
        tuple(orders(timed, apart)),
        tuple(read_gains(folder)),
        memory_errors(rows),
        skipped,
    )
