"""Samples as the short rows that travel to a browser, and the queue they wait in."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from mimokit.analysis import PHASE_COLUMNS

Row = list[Any]

STEP, EVALUATION = 0, 1
STEP_COLUMNS = (
    "rank",
    "iteration",
    "time",
    "total_time",
    "tokens_per_sec",
    "loss",
    "memory_allocated",
)
EVALUATION_COLUMNS = ("iteration", "time", "task", "exact_match", "digit_accuracy", "chance")


def phase_names(modules: Sequence[str]) -> dict[str, str]:
    """Return the phases in stacking order: name in the legend -> column of a sample."""
    per_module = {
        f"{module} {phase}": f"{module}_{phase}_time"
        for phase in ("forward", "backward")
        for module in modules
    }
    return {**per_module, **PHASE_COLUMNS}


def further_columns(modules: Sequence[str]) -> list[str]:
    """Return the columns behind STEP_COLUMNS: the phases, then tokens per second by module."""
    rates = [f"{module}_tokens_per_sec" for module in modules]
    return [*phase_names(modules).values(), *rates]


def to_row(sample: Mapping[str, Any], further: Sequence[str]) -> Row | None:
    """Return a sample as [kind, value, value, ...], None for a kind that no chart draws."""
    if sample.get("kind") == "step":
        columns = (*STEP_COLUMNS, *further)
        return [STEP, *(_short(name, sample.get(name)) for name in columns)]
    if sample.get("kind") == "evaluation":
        return [EVALUATION, *(_short(name, sample.get(name)) for name in EVALUATION_COLUMNS)]
    return None


def _short(name: str, value: Any) -> Any:
    """Return a value as JSON takes it; six figures are more than a screen shows."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return round(value, 3) if name == "time" else float(f"{value:.6g}")


class RowQueue:
    """Every row of a run in order of arrival, and how far they have been sent."""

    def __init__(self, further: Sequence[str]) -> None:
        self._further = tuple(further)
        self._rows: list[Row] = []
        self._sent = 0
        self._lock = threading.Lock()
        self._news = threading.Event()

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, sample: Mapping[str, Any]) -> None:
        """Append a sample."""
        row = to_row(sample, self._further)
        if row is not None:
            with self._lock:
                self._rows.append(row)
            self._news.set()

    def wait(self, timeout: float) -> bool:
        """Wait until there are rows that were not taken yet; say whether there are."""
        return self._news.wait(timeout)

    def take(self) -> tuple[int, list[Row]]:
        """Return the rows that were not taken yet, and the place of the first among all."""
        with self._lock:
            self._news.clear()
            start, self._sent = self._sent, len(self._rows)
            return start, self._rows[start:]

    def everything(self) -> list[Row]:
        """Return all rows so far, taken or not."""
        with self._lock:
            return list(self._rows)


def thinned(rows: Sequence[Row], most: int) -> tuple[list[Row], int]:
    """Return at most about `most` rows, and every how many iterations of them are left.

    Evaluations and the last iteration are always kept.
    """
    every = max(1, -(-len(rows) // most))
    last = max((row[2] for row in rows if row[0] == STEP), default=0)
    kept = [row for row in rows if row[0] != STEP or row[2] % every == 0 or row[2] == last]
    return kept, every
