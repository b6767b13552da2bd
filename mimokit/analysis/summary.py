"""A run in a few honest numbers."""

from __future__ import annotations

import pandas as pd

from mimokit.samples import over_ranks


def without_warmup(steps: pd.DataFrame, warmup_iterations: int) -> pd.DataFrame:
    """Return the steps after the first `warmup_iterations` iterations of the table.

    The last iteration always stays, so that a very short run can still be looked at.
    """
    if warmup_iterations <= 0 or steps.empty:
        return steps
    iterations = sorted(int(iteration) for iteration in steps["iteration"].unique())
    first = iterations[min(warmup_iterations, len(iterations) - 1)]
    used: pd.DataFrame = steps.loc[steps["iteration"] >= first]
    return used


def per_iteration(steps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per iteration, as `metrics.csv` has them; see `samples.over_ranks`."""
    how = {
        name: str(over_ranks(name))
        for name in steps.columns
        if name not in ("rank", "iteration") and pd.api.types.is_numeric_dtype(steps[name])
    }
    if steps.empty or not how:
        return steps.drop(columns=["rank"], errors="ignore")
    ordered = steps.sort_values("rank", kind="stable") if "rank" in steps.columns else steps
    return ordered.groupby("iteration", as_index=False, sort=True).agg(how)


def summarize(steps: pd.DataFrame, warmup_iterations: int = 0) -> pd.Series:
    """Return the numbers that describe a run, warm-up iterations left out.

    Medians, because one slow step (a checkpoint, a neighbour on the machine) must not move them;
    the 10th and 90th percentile of the step time say how steady the run was. The losses are
    those of the very first and the very last iteration, warm-up included.
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
