"""Step tables: from samples, per iteration, per phase, and summarized in a few numbers."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from mimokit.samples import (
    EVALUATION_COLUMNS,
    OF_A_RANK,
    STEP_COLUMNS,
    EvaluationSample,
    OverRanks,
    Sample,
    StepSample,
    module_column,
    modules_of,
    over_ranks,
)
from mimokit.step_kinds import MODULE_PHASES, RANK_PHASES, REMAINDER

_FIRST = (*OF_A_RANK, "iteration", "time")
TABLE_COLUMNS = (*_FIRST, *(name for name in STEP_COLUMNS if name not in _FIRST))
"""Columns of every step table, in order; those of modules follow."""
_ROWS_TOGETHER = 4096


def samples_to_steps(samples: Iterable[Sample]) -> pd.DataFrame:
    """Return the training steps, one row per rank and iteration, sorted by iteration and rank."""
    rows = (sample.row() for sample in samples if isinstance(sample, StepSample))
    return _table(rows, TABLE_COLUMNS, ["iteration", "rank"])


def samples_to_evaluations(samples: Iterable[Sample]) -> pd.DataFrame:
    """Return the evaluations, one row per iteration and task, sorted by iteration."""
    rows = (sample.row() for sample in samples if isinstance(sample, EvaluationSample))
    return _table(rows, EVALUATION_COLUMNS, ["iteration", "task", "rank"])


def _table(
    rows: Iterator[Mapping[str, Any]], columns: tuple[str, ...], order: list[str]
) -> pd.DataFrame:
    # A row takes twenty times as much as its numbers in a table: long runs have many.
    parts = []
    while part := list(itertools.islice(rows, _ROWS_TOGETHER)):
        parts.append(pd.DataFrame(part))
    if not parts:
        return pd.DataFrame(columns=list(columns))
    table = pd.concat(parts, ignore_index=True)
    known = [name for name in columns if name in table.columns]
    others = [name for name in table.columns if name not in columns]
    return table[known + others].sort_values(order, kind="stable", ignore_index=True)


def without_warmup(steps: pd.DataFrame, warmup_iterations: int) -> pd.DataFrame:
    """Return the steps after the first `warmup_iterations` iterations of the table.

    The last iteration is always kept, so that a very short run has at least one.
    """
    if warmup_iterations <= 0 or steps.empty:
        return steps
    iterations = sorted(int(iteration) for iteration in steps["iteration"].unique())
    first = iterations[min(warmup_iterations, len(iterations) - 1)]
    used: pd.DataFrame = steps.loc[steps["iteration"] >= first]
    return used


def per_iteration(steps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per iteration, equal to `metrics.csv`; `samples.over_ranks` has the rule."""
    how = {
        name: over_ranks(name)
        for name in steps.columns
        if name not in (*OF_A_RANK, "iteration") and pd.api.types.is_numeric_dtype(steps[name])
    }
    if steps.empty or not how:
        return steps.drop(columns=list(OF_A_RANK), errors="ignore")
    ordered = steps.sort_values("rank", kind="stable") if "rank" in steps.columns else steps
    several = "replica" in ordered.columns and ordered["replica"].nunique() > 1
    of_replicas = OverRanks.MEAN if several else OverRanks.FIRST
    if several:
        ordered = _first_of_each_replica(ordered, how)
    ordered = _slowest_first(ordered, how)
    names = {OverRanks.REPLICAS: of_replicas, OverRanks.SLOWEST: OverRanks.FIRST}
    rules = {name: str(names.get(over, over)) for name, over in how.items()}
    return ordered.groupby("iteration", as_index=False, sort=True).agg(rules)


def _slowest_first(steps: pd.DataFrame, how: Mapping[str, OverRanks]) -> pd.DataFrame:
    names = [name for name, over in how.items() if over is OverRanks.SLOWEST]
    if not names or "total_time" not in how:
        return steps
    table = steps.sort_values("iteration", kind="stable")
    slow = table.sort_values(["iteration", "total_time"], ascending=[True, False], kind="stable")
    return table.assign(**{name: slow[name].to_numpy() for name in names})


def _first_of_each_replica(steps: pd.DataFrame, how: Mapping[str, OverRanks]) -> pd.DataFrame:
    table = steps.copy()
    for name in (name for name, over in how.items() if over is OverRanks.REPLICAS):
        known = table[table[name].notna()]
        first = known.drop_duplicates(["iteration", "replica"]).index
        table[name] = table[name].where(table.index.isin(first))
    return table


def summarize(steps: pd.DataFrame, warmup_iterations: int = 0) -> pd.Series:
    """Return the numbers that describe a run, warm-up iterations left out.

    They are medians, which one slow step (a checkpoint, other work on the machine) does not move;
    the 10th and 90th percentile of the step time show how steady the run was. The losses are those
    of the first and the last iteration, warm-up included.
    """
    everything = per_iteration(steps)
    used = per_iteration(without_warmup(steps, warmup_iterations))
    if used.empty:
        return pd.Series({"iterations": 0.0}, name="run")
    numbers = {
        "iterations": float(len(used)),
        "step_time_median": float(used["total_time"].median()),
        "step_time_p10": float(used["total_time"].quantile(0.1)),
        "step_time_p90": float(used["total_time"].quantile(0.9)),
    }
    for name in ("tokens_per_sec", "samples_per_sec"):
        if name in used.columns:
            numbers[f"{name}_median"] = float(used[name].median())
    if "memory_allocated" in used.columns:
        numbers["memory_allocated_max"] = float(used["memory_allocated"].max())
    if "loss" in everything.columns:
        numbers["first_loss"] = float(everything["loss"].iloc[0])
        numbers["last_loss"] = float(everything["loss"].iloc[-1])
    return pd.Series(numbers, name="run")


def module_names(steps: pd.DataFrame) -> list[str]:
    """Return the modules with times in a step table, in the order of its columns."""
    return modules_of(steps.columns)


def phase_times(steps: pd.DataFrame, warmup_iterations: int = 0) -> pd.DataFrame:
    """Return the mean seconds per step of every rank, module and phase.

    Columns: rank, module ("" for phases without a module), phase, seconds. The phase `other` is the
    rest of the step time; it is never negative.
    """
    used = without_warmup(steps, warmup_iterations)
    if "rank" not in used.columns:
        used = used.assign(rank=0)
    sources = _sources(used)
    rows: list[dict[str, object]] = []
    for rank, of_rank in used.groupby("rank", sort=True):
        accounted = 0.0
        for module, phase, column in sources:
            seconds = float(of_rank[column].mean())
            accounted += seconds
            rows.append({"rank": rank, "module": module, "phase": phase, "seconds": seconds})
        rest = max(0.0, float(of_rank["total_time"].mean()) - accounted)
        rows.append({"rank": rank, "module": "", "phase": REMAINDER, "seconds": rest})
    return pd.DataFrame(rows, columns=["rank", "module", "phase", "seconds"])


def _sources(steps: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Return (module, phase, column) in the order in which phases are stacked."""
    sources = [
        (module, str(phase), module_column(module, phase.column))
        for phase in MODULE_PHASES
        for module in module_names(steps)
    ]
    sources += [("", str(phase), phase.column) for phase in RANK_PHASES]
    return [source for source in sources if source[2] in steps.columns]
