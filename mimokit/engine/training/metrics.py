"""The tables of a run as CSV files. Plain Python: the notebook's process uses it as well."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLUMNS = (
    "iteration",
    "total_time",
    "forward_time",
    "backward_time",
    "optimizer_time",
    "tokens_per_sec",
    "samples_per_sec",
    "memory_allocated",
    "memory_reserved",
    "loss",
    "communication_time",
    "data_time",
    "tokens_per_sec_per_rank",
    "samples_per_sec_per_rank",
    "grad_norm",
)


def write_metrics(directory: str | Path, rows: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
    """Write the two tables of a run.

    Args:
        directory: made if missing.
        rows: rank -> its rows.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    by_rank = [{**row, "rank": rank} for rank, mine in rows.items() for row in mine]
    by_rank.sort(key=lambda row: (row["iteration"], row["rank"]))
    _write(folder / "metrics_by_rank.csv", by_rank)
    _write(folder / "metrics.csv", slowest_rank(by_rank))


def slowest_rank(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Fold rows of several ranks into one per iteration.

    Times and memory are the largest over the ranks; rates, loss and norm are those of the whole
    world already, so the slowest rank's are taken.
    """
    iterations: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        iterations[row["iteration"]].append(row)
    result = []
    for iteration in sorted(iterations):
        group = iterations[iteration]
        slowest = dict(max(group, key=lambda row: row["total_time"]))
        for column in slowest:
            if column.endswith("_time") or column.startswith("memory_"):
                slowest[column] = max(row[column] for row in group if column in row)
        slowest.pop("rank", None)
        result.append(slowest)
    return result


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    known = dict.fromkeys(COLUMNS)
    further = dict.fromkeys(key for row in rows for key in row if key not in known)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*known, *further], restval="")
        writer.writeheader()
        writer.writerows(rows)
