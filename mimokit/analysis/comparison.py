"""Runs against a baseline: medians, intervals, and which differences are significant."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mimokit.analysis.bootstrap import FEWEST_STEPS, Estimate, difference, estimate_runs
from mimokit.analysis.run_info import busy_machine
from mimokit.analysis.runs import Runs
from mimokit.analysis.table_file import records
from mimokit.samples import OverRanks, over_ranks
from mimokit.tables import Report, Section
from mimokit.units import listed

COMPARISON_COLUMNS = (
    "name", "runs", "iterations", "median", "low", "high", "difference", "difference_low",
    "difference_high", "change", "significant",
)  # fmt: skip
"""Columns of `Comparison.table`."""
MOST_UNLIKE = 4
"""Runs that are named with what they have and others have not."""
HEADINGS = ("", "runs", "median", "interval", "against baseline", "interval of the difference", "")


@dataclass(frozen=True, repr=False)
class Comparison(Report):
    """What `compare` found.

    Attributes:
        table: a row per name, best first and those of `unfinished` last, with COMPARISON_COLUMNS.
            `low` and `high` are the
            interval of the median; `difference` is the median minus the baseline's, with an
            interval that holds for all differences at once; `change` is the difference over the
            baseline's median; `significant` is whether that interval leaves out 0.
        estimates, left_out: name -> its median with its error, or why it is not compared.
        unfinished: name -> the status of its runs, where none has completed. These are compared
            with the baseline, but not ranked. Empty if no run at all has completed.
    """

    metric: str
    baseline: str
    confidence: float
    table: pd.DataFrame
    estimates: Mapping[str, Estimate]
    left_out: Mapping[str, str]
    unfinished: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def ranked(self) -> list[str]:
        """The names that are ranked, best first."""
        return [str(name) for name in self.table["name"] if name not in self.unfinished]

    @property
    def best(self) -> str:
        """The name with the best median, of those that are ranked."""
        return self.ranked[0]

    @property
    def as_good_as_best(self) -> list[str]:
        """The names that do not differ significantly from the best one, best first."""
        among = self.ranked[1:]
        level = _simultaneous(self.confidence, len(among))
        return [
            name
            for name in among
            if not _significant(difference(self.estimates[name], self.estimates[self.best]), level)
        ]

    def sentences(self) -> list[str]:
        """Return what the table says, in words."""
        rows = {row["name"]: row for row in records(self.table)}
        best, unit = rows[self.best], " s" if self.metric.endswith("_time") else ""
        said = [
            f"{self.best} has the best median of {self.metric}: {_number(best['median'])}{unit} "
            f"({_at(self.confidence, best)})."
        ]
        if self.best != self.baseline:
            said.append(f"{_against(best)} the baseline {self.baseline}.")
        ties = self.as_good_as_best
        if ties:
            said.append(f"Its difference from {listed(ties)} is not significant.")
        same = [
            str(name)
            for name, row in rows.items()
            if name not in (self.baseline, *self.unfinished) and not row["significant"]
        ]
        if same and self.best != self.baseline:
            verb = "does" if len(same) == 1 else "do"
            said.append(f"{listed(same)} {verb} not differ significantly from {self.baseline}.")
        said += [
            f"{name} is not ranked: its status is {status}."
            for name, status in self.unfinished.items()
        ]
        said += [f"{name} is not compared: {why}." for name, why in self.left_out.items()]
        return [*said, *self.notes]

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table as texts, under HEADINGS."""
        return [
            _row(row, self.baseline, self.unfinished.get(str(row["name"])))
            for row in records(self.table)
        ]

    def __str__(self) -> str:
        return "\n".join(self.sentences())

    def section(self) -> Section:
        """Return a row per run or layout, and below them what they say."""
        heading = f"{self.metric}: medians with {self.confidence:.0%} intervals"
        return Section(heading, HEADINGS, self.rows(), self.sentences())


def compare(
    runs: Runs,
    baseline: str | None = None,
    metric: str = "tokens_per_sec",
    *,
    by: str = "run",
    confidence: float = 0.95,
    resamples: int = 500,
    seed: int = 0,
) -> Comparison:
    """Compare the medians of a metric, warm-up iterations left out.

    The error of a median comes from a circular block bootstrap, because successive steps are
    correlated (`mimokit.analysis.bootstrap` says how). Several runs of one name are drawn as whole
    runs, of which those that did not complete count only where none did. The intervals of the
    differences hold for all of them at once (Bonferroni), so that among
    many equal layouts none looks better by chance more often than `confidence` says.

    Args:
        baseline: the name to compare with; by default `baseline`, or else the first one that is
            complete, or the first one.
        metric: a column of `runs.iterations`; a rate that is 0 in every step of every run was not
            given to their monitors, and total_time is compared.
        by: the column of `runs.runs` whose values are compared: "run" for each run alone, "layout"
            to put repeated runs (seeds) of one layout together.
        seed: of the bootstrap; the same seed gives the same intervals.

    Raises:
        ValueError: the metric, column or baseline does not exist, or nothing can be compared.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; it must be between 0 and 1, such as 0.95.")
    asked_for, metric = metric, _given(runs, metric)
    series, unfinished, left_out = _series(runs, metric, by)
    names = list(series)
    if not names:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise ValueError(f"No run has values of {metric} ({why}).")
    chosen = baseline or _default_baseline(runs, names, by)
    if chosen not in names:
        reason = left_out.get(chosen)
        raise ValueError(
            f"Baseline '{chosen}': {reason or 'there is none of this name'}; "
            f"choose among {listed(names)}."
        )
    rng = np.random.default_rng(seed)
    estimates = {name: estimate_runs(values, rng, resamples) for name, values in series.items()}
    level = _simultaneous(confidence, len(names) - 1)
    rows = [_measured(name, series[name], estimates, chosen, (confidence, level)) for name in names]
    table = pd.DataFrame(rows, columns=list(COMPARISON_COLUMNS))
    table = table.sort_values("median", ascending=lower_is_better(metric), kind="stable")
    table = table.sort_values(
        "name", key=lambda names: names.isin(unfinished), kind="stable", ignore_index=True
    )
    notes = [*_notes(runs, series, by), *filter(None, map(busy_machine, records(runs.runs)))]
    if unfinished.keys() >= set(names):
        unfinished = {}
        notes.append("No run has completed: the medians are those of what was measured.")
    if metric != asked_for:
        notes.append(
            f"{asked_for} is 0 in every step, so the loop gave its monitor no figures of it: "
            f"{metric} is compared."
        )
    return Comparison(
        metric, chosen, confidence, table, estimates, left_out, unfinished, tuple(notes)
    )


def lower_is_better(metric: str) -> bool:
    """Whether a smaller value is better: of times, memory and loss, not of rates."""
    return over_ranks(metric) not in (OverRanks.SMALLEST, OverRanks.MEAN)


def _given(runs: Runs, metric: str) -> str:
    steps = runs.settled(runs.iterations)
    if metric not in steps.columns or lower_is_better(metric):
        return metric
    rates = pd.to_numeric(steps[metric], errors="coerce").dropna()
    return "total_time" if len(rates) and not rates.any() else metric


def _default_baseline(runs: Runs, names: Sequence[str], by: str) -> str:
    if "baseline" in names:
        return "baseline"
    complete = runs.runs.loc[runs.runs["status"] == "completed", by]
    return next((str(name) for name in complete if name in names), names[0])


def _series(
    runs: Runs, metric: str, by: str
) -> tuple[dict[str, list[np.ndarray]], dict[str, str], dict[str, str]]:
    if by not in runs.runs.columns:
        raise ValueError(f"Column {by} does not exist in the table of runs; take run or layout.")
    steps = runs.settled(runs.iterations)
    if metric not in steps.columns or not pd.api.types.is_numeric_dtype(steps[metric]):
        known = [name for name in steps.select_dtypes("number").columns if name != "iteration"]
        raise ValueError(f"Metric {metric} does not exist; the metrics are {listed(known)}.")
    values = {
        str(name): group[metric].dropna().to_numpy(dtype=np.float64)
        for name, group in steps.groupby("run", observed=True)
    }
    counts = {name: len(series) for name, series in values.items()}
    # Too few steps have no interval. If no run has enough, medians alone are better than nothing.
    # The same holds of a run that failed in its warm-up, whose last step counts as settled.
    unsettled = runs.ended_in_warmup()
    if unsettled < counts.keys():
        counts |= dict.fromkeys(unsettled, 0)
    fewest = FEWEST_STEPS if max(counts.values(), default=0) >= FEWEST_STEPS else 1
    unfinished = runs.unfinished()
    compared: dict[str, dict[str, np.ndarray]] = {}
    reasons: dict[str, str] = {}
    for row in records(runs.runs):
        name = row["run"] if pd.isna(row[by]) else str(row[by])
        count = counts.get(row["run"], 0)
        if count and not lower_is_better(metric) and not values[row["run"]].any():
            reasons[name] = f"its {metric} is 0 in every step, so its monitor was not given any"
        elif count >= fewest:
            compared.setdefault(name, {})[row["run"]] = values[row["run"]]
        else:
            few = f"only {count}" if count else "no iteration"
            many = f"{few} after the warm-up" if row["run"] in counts else few
            reasons[name] = f"its status is {row['status']}, and it has {many} with {metric}"
    series, statuses = {}, {}
    for name, of_runs in compared.items():
        finished = [steps for run, steps in of_runs.items() if run not in unfinished]
        series[name] = finished or list(of_runs.values())
        if not finished:
            statuses[name] = listed(list(dict.fromkeys(unfinished[run] for run in of_runs)))
    left_out = {name: why for name, why in reasons.items() if name not in compared}
    return series, statuses, left_out


def _measured(
    name: str,
    series: list[np.ndarray],
    estimates: Mapping[str, Estimate],
    baseline: str,
    levels: tuple[float, float],
) -> dict[str, object]:
    estimate, base = estimates[name], estimates[baseline]
    low, high = estimate.interval(levels[0])
    below = 0.0 if all((values >= 0).all() for values in series) else -math.inf
    row: dict[str, object] = {
        "name": name,
        "runs": len(series),
        "iterations": sum(map(len, series)),
        "median": estimate.value,
        "low": max(low, below),  # in this order NaN stays
        "high": high,
        "significant": False,
    }
    if name != baseline:
        gap = difference(estimate, base)
        less, more = gap.interval(levels[1])
        less = max(less, below - base.value)
        row |= {"difference": gap.value, "difference_low": less, "difference_high": more}
        row["change"] = gap.value / base.value if base.value else math.nan
        row["significant"] = _significant(gap, levels[1])
    return row


def _significant(gap: Estimate, level: float) -> bool:
    low, high = gap.interval(level)
    return low > 0 or high < 0


def _simultaneous(confidence: float, differences: int) -> float:
    return 1 - (1 - confidence) / max(1, differences)


def _notes(runs: Runs, series: Mapping[str, list[np.ndarray]], by: str) -> list[str]:
    notes = []
    if all(len(values) == 1 for values in series.values()):
        notes.append(
            "Each has one run: the intervals say how steady its steps were, not how much another "
            "run would differ."
        )
    rows = [row for row in records(runs.runs) if str(row[by]) in series]
    for column, what in (("samples_per_step", "samples per step"), ("world_size", "ranks")):
        of_name: dict[str, list[float]] = {}
        for row in rows:
            if not pd.isna(row[column]):
                of_name.setdefault(str(row[by]), []).append(row[column])
        for name, each in of_name.items():
            if len(set(each)) > 1:
                values = listed([f"{value:g}" for value in sorted(set(each))])
                notes.append(f"The runs of {name} have different {what}: {values}.")
        first = {each[0]: name for name, each in reversed(of_name.items())}
        if len(first) > 1:
            named = [f"{name} {value:g}" for value, name in reversed(first.items())]
            cut = ", …" * (len(named) > MOST_UNLIKE)
            notes.append(f"Their {what} differ: {', '.join(named[:MOST_UNLIKE])}{cut}.")
    return notes


def _against(row: Mapping[str, float]) -> str:
    change, base = row["change"], row["median"] - row["difference"]
    ends = sorted((row["difference_low"] / base, row["difference_high"] / base))
    span = "" if math.isnan(ends[0]) else f" ({ends[0]:+.1%} to {ends[1]:+.1%})"
    return f"This is {abs(change):.1%}{span} {'above' if change > 0 else 'below'}"


def _row(row: Mapping[str, object], baseline: str, status: str | None) -> tuple[str, ...]:
    known = {name: value for name, value in row.items() if isinstance(value, int | float)}
    cells = (
        str(row["name"]),
        f"{known['runs']:.0f}",
        _number(known["median"]),
        _span(known["low"], known["high"]),
    )
    unranked = "" if status is None else f"{status}, not ranked"
    if row["name"] == baseline:
        return (*cells, "baseline", "", unranked)
    return (
        *cells,
        f"{known['change']:+.1%}",
        _span(known["difference_low"], known["difference_high"]),
        unranked or ("" if row["significant"] else "not significant"),
    )


def _at(confidence: float, row: Mapping[str, float]) -> str:
    if math.isnan(row["low"]):
        return "too few steps for an interval"
    return f"{_span(row['low'], row['high'])} at {confidence:.0%} confidence"


def _span(low: float, high: float) -> str:
    return "too few steps" if math.isnan(low) else f"{_number(low)} to {_number(high)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
