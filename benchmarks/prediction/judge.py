"""All that is judged, against its targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.prediction.choices import Choice, choices, read_tried, tables_of
from benchmarks.prediction.doubt import coverage, flagged
from benchmarks.prediction.fit import bounds_reached, fitted_constants
from benchmarks.prediction.fit_tried import TRIED
from benchmarks.prediction.folds import Kind, fold_name
from benchmarks.prediction.gains import FILE as GAINS
from benchmarks.prediction.gains import Gain, read_gains
from benchmarks.prediction.misses import gain_misses, order_misses, step_misses
from benchmarks.prediction.own_runs import errors_of, means
from benchmarks.prediction.rows import A100, PUBLISHED, Measured, read
from benchmarks.prediction.score import (
    Order,
    Score,
    memory_errors,
    orders,
    predictions,
    scores,
)
from benchmarks.prediction.tables import DataError

Row = dict[str, Any]
STEP_TARGETS = {
    "dense": 7.0,
    "MoE": 12.0,
    "a100-measured-steps (multi-node)": 8.0,
    "a100-measured-steps (single-node)": 8.0,
}
"""First words of a group -> mean error in percent; of GPT on other A100s none was set."""


def _has_experts(row: Measured) -> bool:
    return row.model.net.moe is not None


DESCRIBED = ("bridge", "simumax", "megatron-2021")
"""Stacks whose constants ship; rows of another program are judged apart, without a target."""
UNEXPLAINED = "GPT OSS 120B"
"""The family of experts whose missing time nobody explains yet."""
OVERALL: Mapping[str, tuple[Callable[[Measured], bool], float]] = {
    "dense models": (lambda row: not _has_experts(row), 7.0),
    "experts": (_has_experts, 15.0),
    "experts, recipe known, without GPT-OSS": (
        lambda row: _has_experts(row) and row.stated and row.name != UNEXPLAINED,
        12.0,
    ),
}
"""Rows of later GPUs, over all GPUs and precisions -> mean error in percent at most."""
INSIDE = (75.0, 85.0)
"""Percent of left-out rows that stay inside the band of their predictions."""
GIVEN_RUNS = 3
"""Runs of a family after which its others are predicted within 5 %."""
MOST_CONSTANTS = 14
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
        folds: "dense models, generation left out" and the like -> mean error in percent.
        inside: kind of model -> percent of left-out rows inside their band.
        flagged: row -> why it cannot be as printed; it counts nevertheless.
        given: runs of a family that are given -> mean error on its others in percent.
        constants: how many constants are fitted; None: it was not asked.
        on_bounds: sentences about constants that end on a bound, of all rows and of each fold.
        choices: per group of a table of tried layouts, what the predictor would choose.
    """

    scores: tuple[Score, ...]
    orders: tuple[Order, ...]
    gains: tuple[Gain, ...]
    memory: Mapping[str, float]
    skipped: Mapping[str, int]
    folds: Mapping[str, float] = field(default_factory=dict)
    inside: Mapping[str, float] = field(default_factory=dict)
    flagged: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[int, float] = field(default_factory=dict)
    constants: int | None = None
    on_bounds: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()

    def families(self) -> dict[str, tuple[int, float, float]]:
        """Return family -> its rows, and mean error and bias in percent with it left out."""
        found: dict[str, list[float]] = {}
        for score in self.scores:
            for row, error in zip(score.rows, score.errors, strict=True):
                family = fold_name("family", row)
                if family is not None and row.stack in DESCRIBED:
                    found.setdefault(family, []).append(100 * float(error))
        return {
            name: (len(each), float(np.abs(each).mean()), float(np.mean(each)))
            for name, each in sorted(found.items())
        }

    def rows(self) -> list[Row]:
        """Return name, measured, target, unit and ok of everything that has a target."""
        found = [
            _row(f"step time: {score.name}", score.mean, target, "% mean")
            for score in self.scores
            for start, target in STEP_TARGETS.items()
            if score.name.startswith(start) and score.rows[0].stack in DESCRIBED
        ]
        found += [
            _row(f"step time: all {name}", mean, OVERALL[name][1], "% mean")
            for name, mean in overall(self.scores).items()
        ]
        found += [
            {
                "name": f"rows inside the band: {kind}",
                "measured": share,
                "target": "75 to 85 %",
                "unit": "%",
                "ok": INSIDE[0] <= share <= INSIDE[1],
            }
            for kind, share in self.inside.items()
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
            found.append(_row("peak memory", error, 2.5, "% mean"))
        if GIVEN_RUNS in self.given:
            name = f"step time: {GIVEN_RUNS} own runs of a family given"
            found.append(_row(name, self.given[GIVEN_RUNS], 5.0, "% mean"))
        if self.constants is not None:
            found.append(_row("fitted constants", self.constants, MOST_CONSTANTS, ""))
        return found + choice_rows(self.choices)

    def as_printed(self) -> dict[str, float]:
        """Return group -> its mean error in percent without the rows that cannot be as printed."""
        kept: list[Score] = []
        for score in self.scores:
            rows = score.rows
            fine = [place for place, row in enumerate(rows) if row.label not in self.flagged]
            chosen = tuple(rows[place] for place in fine)
            if chosen:
                kept.append(Score(score.name, score.errors[fine], score.shipped[fine], chosen))
        means = {score.name: score.mean for score in kept if score.name.startswith("a100")}
        return {**means, **overall(kept)}

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
            "folds": dict(self.folds),
            "without_flagged": self.as_printed(),
            "inside_band": dict(self.inside),
            "flagged": dict(self.flagged),
            "own_runs_given": dict(self.given),
            "families": {
                name: {"rows": count, "mean_percent": mean, "bias_percent": bias}
                for name, (count, mean, bias) in self.families().items()
            },
            "fitted_constants": self.constants,
            "on_bounds": list(self.on_bounds),
            "choices": [asdict(choice) for choice in self.choices],
        }


def overall(scores: Iterable[Score]) -> dict[str, float]:
    """Return the mean error in percent of all rows of later GPUs, by the names of `OVERALL`."""
    rows, errors = _later(scores)
    chosen = {
        name: [abs(error) for row, error in zip(rows, errors, strict=True) if holds(row)]
        for name, (holds, _) in OVERALL.items()
    }
    return {name: 100 * float(np.mean(each)) for name, each in chosen.items() if each}


def _later(scores: Iterable[Score]) -> tuple[list[Measured], list[float]]:
    """Return rows of later GPUs with stacks that are described, and their errors."""
    rows: list[Measured] = []
    errors: list[float] = []
    for score in scores:
        if score.rows[0].hardware.startswith("a100") or score.rows[0].stack not in DESCRIBED:
            continue
        rows += score.rows
        errors += score.errors.tolist()
    return rows, errors


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


def choice_rows(choices: Sequence[Choice]) -> list[Row]:
    """Return what is reached in tables of tried layouts, against targets."""
    if not choices:
        return []
    given = choices[0].given
    near = [each.ten_fastest_percent for each in choices if each.nodes <= NEAR_NODES]
    far = [each.ten_fastest_percent for each in choices if each.nodes > NEAR_NODES]
    best = [each.loss_of_best_percent for each in choices]
    of_three = [each.loss_of_best_of_three_percent for each in choices]
    failed = [
        each.failures_foreseen_percent
        for each in choices
        if each.failures_foreseen_percent is not None
    ]
    refused = [each.runners_refused_percent for each in choices]
    bounds = CHOICE_TARGETS[given > 0]
    named: tuple[tuple[str, list[float], float, bool], ...] = (
        (f"ten fastest, up to {NEAR_NODES} nodes", near, bounds[0], False),
        (f"ten fastest, more than {NEAR_NODES} nodes", far, bounds[1], False),
        ("loss of the predicted best", best, bounds[2], False),
        ("loss of the best of three", of_three, bounds[3], False),
        ("failures foreseen", failed, 90.0, True),
        ("runners refused", refused, 1.0, False),
    )
    rows = [
        _row(f"{name}, {given} own runs given", float(np.mean(found)), target, "% mean", least)
        for name, found, target, least in named
        if found
    ]
    worst = _row(f"worst loss of the best, {given} own runs given", max(best), WORST_LOSS, "%")
    return [*rows, worst] if given else rows


NEAR_NODES, WORST_LOSS = 8, 15.0
CHOICE_TARGETS: Mapping[bool, tuple[float, float, float, float]] = {
    False: (15.0, 25.0, 15.0, 5.0),
    True: (10.0, 10.0, 5.0, 1.0),
}
"""Whether own runs are given -> targets in percent, in the order of `choice_rows`."""


def judge(folder: Path, given: int = 0) -> Judgement:
    """Judge the predictor by the tables of a folder.

    Args:
        given: own runs of each group of tried layouts.

    Raises:
        DataError: the folder has none of the tables, or one lacks a column.
    """
    tried = tables_of(folder)
    if not tried and not any((folder / name).exists() for name in (PUBLISHED, A100, GAINS)):
        raise DataError(
            f"{folder}: there is none of {PUBLISHED}, {A100} and {GAINS}, and no table of tried "
            "layouts, which has a column 'outcome'."
        )
    rows, skipped = read(folder)
    for path in tried:
        skipped = Counter(skipped) + Counter(read_tried(path)[1])
    timed = [row for row in rows if row.seconds]
    apart, shipped = predictions(timed)
    left_out = tuple(scores(timed, apart, shipped))
    gains, unread = read_gains(folder)
    kinds: tuple[Kind, ...] = ("generation", "release")
    return Judgement(
        left_out,
        tuple(orders(timed, apart)),
        tuple(gains),
        memory_errors(rows),
        Counter(skipped) + Counter(unread),
        {
            f"{name}, {kind} left out": mean
            for kind in kinds
            for name, mean in overall(scores(timed, *predictions(timed, kind))).items()
        },
        {kind: 100 * share for kind, share in coverage(*_later(left_out)).items()},
        {timed[place].label: why for place, why in flagged(timed).items()},
        means(errors_of(timed)),
        len(fitted_constants()["all"]) + len(TRIED),
        tuple(bounds_reached()),
        tuple(choice for path in tried for choice in choices(path, given)),
    )
