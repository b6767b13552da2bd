"""What a view of many runs shows: a row per run, and the curves of all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from mimokit.analysis import Comparison, Runs, compare
from mimokit.analysis.comparison import lower_is_better
from mimokit.analysis.table_file import records
from mimokit.axes import CONFIG_FIELDS, SHOWN_AXES
from mimokit.charts import _palette
from mimokit.samples import module_column
from mimokit.units import counted

RATES = ("tokens_per_sec", "samples_per_sec")
METRICS: Mapping[str, tuple[str, str]] = {
    "loss": ("Loss", "number"),
    "total_time": ("Step time", "seconds"),
    "tokens_per_sec": ("Tokens per second", "rate"),
    "samples_per_sec": ("Samples per second", "rate"),
    "memory_peak": ("Memory, largest rank, peak of the step", "bytes"),
    "memory_allocated": ("Memory, largest rank, end of the step", "bytes"),
    "communication_time": ("Communication, slowest rank", "seconds"),
    "waiting_time": ("Waiting for other ranks, slowest rank", "seconds"),
    "model_flop_utilisation": ("Model FLOP utilisation", "share"),
}
"""Column of the iterations -> its title, and how its values are written."""
ALIKE = {"samples_per_sec": "tokens_per_sec", "memory_allocated": "memory_peak"}
"""Metric -> one that is shown instead where it was measured."""
NOT_COMPARED = ("loss",)
"""Without medians: the loss of a run falls."""
MOST_NUMBERS = 400_000
"""Numbers of all curves on a page, four bytes each; of longer runs each is a mean of several."""
FEWEST_DRAWS, MOST_DRAWS, DRAWS_OF_ALL = 50, 500, 10_000
"""Of the bootstrap: of up to 20 runs as many as `compare` draws; 50 know an error to 10 %."""
MOST_SHOWN = 12
"""Runs that are shown at first."""


@dataclass(frozen=True)
class RunsContent:
    """What the browser draws runs from.

    Attributes:
        about: as JSON: `runs` in the order of the table, `metrics`, `sizes`, `baseline`, the
            problems of the folders, and of how many iterations `every` value is the mean.
        tables: for every run (1 + metrics, iterations): its iterations, then its values of every
            metric; NaN where nothing was measured.
        chosen: the comparison that is shown first, None where nothing was measured.
    """

    about: dict[str, Any]
    tables: tuple[np.ndarray, ...]
    chosen: Comparison | None = None

    @property
    def shown(self) -> list[str]:
        """The runs that are shown at first: the best ones."""
        return [run["name"] for run in self.about["runs"] if run["count"]][:MOST_SHOWN]

    @property
    def curves(self) -> bytes:
        """All tables in order, as float32."""
        flat = [table.astype(np.float32).ravel() for table in self.tables]
        return np.concatenate(flat).tobytes() if flat else b""

    def thinned(self, most: int = MOST_NUMBERS) -> RunsContent:
        """Return the same with at most about `most` numbers: means of successive iterations."""
        every = max(1, -(-sum(table.size for table in self.tables) // most))
        tables = tuple(_means(table, every) for table in self.tables)
        described = zip(self.about["runs"], tables, strict=True)
        runs = [{**run, "count": table.shape[1]} for run, table in described]
        return replace(self, about={**self.about, "runs": runs, "every": every}, tables=tables)


def runs_content(runs: Runs, baseline: str | None = None, metric: str | None = None) -> RunsContent:
    """Return what a view of runs shows.

    Args:
        baseline: as in `mimokit.analysis.compare`.
        metric: that is compared first; by default tokens per second, or else what is there.
    """
    metrics = _metrics(runs.iterations)
    draws = max(FEWEST_DRAWS, min(MOST_DRAWS, DRAWS_OF_ALL // max(1, len(runs))))
    compared = {
        name: compare(runs, None, name, resamples=draws)
        for name in metrics
        if name not in NOT_COMPARED
    }
    chosen = _chosen(runs, baseline, metric, compared)
    order = _best_first(runs, chosen)
    tables = dict(_of_each(runs, metrics))
    empty = np.zeros((1 + len(metrics), 0))
    starts = runs.first_settled()
    sizes = _sizes(runs)
    by_name = {row["run"]: row for row in records(runs.runs)}
    described = [
        {
            **_described(by_name[name], sizes),
            "count": tables.get(name, empty).shape[1],
            "first": starts.get(name, 0),
            "medians": {each: _median(compared[each], name) for each in compared},
        }
        for name in order
    ]
    about = {
        "heading": counted(len(runs), "run"),
        "runs": described,
        "metrics": [_metric(name, name in compared) for name in metrics],
        "metric": "" if chosen is None else chosen.metric,
        "baseline": "" if chosen is None else chosen.baseline,
        "every": 1,
        "sizes": sizes,
        "size_titles": [_size_title(name) for name in sizes],
        "problems": [*runs.endings(), *runs.unhealthy(), *map(str, runs.problems)],
        "hues": list(_palette.RUN_HUES),
    }
    return RunsContent(about, tuple(tables.get(name, empty) for name in order), chosen)


def _metrics(table: pd.DataFrame) -> list[str]:
    known = [name for name in METRICS if _known(table, name)]
    return [name for name in known if ALIKE.get(name) not in known]


def _known(table: pd.DataFrame, name: str) -> bool:
    if name not in table.columns:
        return False
    values = pd.to_numeric(table[name], errors="coerce").dropna()
    return bool(len(values) and values.any())


def _chosen(
    runs: Runs, baseline: str | None, metric: str | None, compared: Mapping[str, Comparison]
) -> Comparison | None:
    if metric is not None or baseline is not None:
        return compare(runs, baseline, metric or RATES[0])
    return next((compared[name] for name in (*RATES, *compared) if name in compared), None)


def _best_first(runs: Runs, chosen: Comparison | None) -> list[str]:
    best = [] if chosen is None else [str(name) for name in chosen.table["name"]]
    return [*best, *(name for name in runs if name not in best)]


def _metric(name: str, compared: bool) -> dict[str, Any]:
    title, kind = METRICS[name]
    return {
        "name": name, "title": title, "kind": kind, "compared": compared,
        "lower": lower_is_better(name),
    }  # fmt: skip


def _median(comparison: Comparison, name: str) -> list[float | None] | None:
    """Return median, ends of its interval, error and degrees of freedom of a run."""
    estimate = comparison.estimates.get(name)
    if estimate is None:
        return None
    values = (estimate.value, *estimate.interval(comparison.confidence))
    return [_finite(value) for value in (*values, estimate.error, estimate.freedom)]


def _finite(value: Any) -> float | None:
    known = isinstance(value, int | float) and math.isfinite(value)
    return float(f"{value:.7g}") if known else None


def _sizes(runs: Runs) -> list[str]:
    names = [str(name) for name in runs.runs]
    modules = [name.removesuffix("_ranks") for name in names if name.endswith("_ranks")]
    columns = [module_column(name, CONFIG_FIELDS[axis]) for name in modules for axis in SHOWN_AXES]
    return [name for name in columns if name in names and runs.runs[name].nunique() > 1]


def _size_title(column: str) -> str:
    axis = next(axis for axis in SHOWN_AXES if column.endswith(f"_{CONFIG_FIELDS[axis]}"))
    return f"{column.removesuffix(f'_{CONFIG_FIELDS[axis]}')} {axis.label}"


def _described(row: Mapping[str, Any], sizes: Sequence[str]) -> dict[str, Any]:
    def text(name: str) -> str:
        value = row.get(name)
        return value if isinstance(value, str) else ""

    known = {"name": row["run"], "ranks": _finite(row.get("world_size"))}
    known |= {name: text(name) for name in ("status", "mode", "layout", "started", "hosts")}
    known |= {"seconds": _finite(row.get("seconds")), "error": text("error").partition("\n")[0]}
    known |= {"iterations_done": int(row["iterations"])}
    return {**known, "sizes": [_finite(row.get(name)) for name in sizes]}


def _of_each(runs: Runs, metrics: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    columns = ["iteration", *metrics]
    if runs.iterations.empty:
        return
    values = runs.iterations[columns].apply(pd.to_numeric, errors="coerce")
    numbers = values.replace([np.inf, -np.inf], np.nan).to_numpy(dtype=np.float64).T
    for name, places in runs.iterations.groupby("run", observed=True).indices.items():
        table = numbers[:, places]
        yield str(name), table[:, np.argsort(table[0], kind="stable")]


def _means(table: np.ndarray, every: int) -> np.ndarray:
    if every == 1 or not table.size:
        return table
    starts = np.arange(0, table.shape[1], every)
    known = np.isfinite(table)
    sums = np.add.reduceat(np.where(known, table, 0.0), starts, axis=1)
    counts = np.add.reduceat(known, starts, axis=1)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    means[0] = table[0, starts]
    return means
