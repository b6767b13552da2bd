"""Samples as the short rows that travel to a browser, and the queue they wait in."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from mimokit.samples import (
    EVALUATION_COLUMNS,
    LIVE_MODULE_COLUMNS,
    LIVE_STEP_COLUMNS,
    EvaluationSample,
    ModuleSample,
    Sample,
    StepSample,
    module_column,
    over_ranks,
)
from mimokit.step_kinds import MODULE_PHASES, RANK_PHASES, CommunicationPart, Phase

Row = list[Any]

MOST_ROWS = 20_000
"""Steps that are kept of a run, about 100 bytes each in a page."""

STEP, EVALUATION = 0, 1
WAITING = "waiting for other ranks"
"""What the view takes out of communication, whose column includes it."""
_live_step_values = attrgetter(*LIVE_STEP_COLUMNS)
_live_module_values = attrgetter(*LIVE_MODULE_COLUMNS)
_ELSEWHERE = ModuleSample()
"""Of a module that is not on the rank."""


@dataclass(frozen=True)
class RowHeader:
    """What the rows of a run hold, in order, after their kind.

    Attributes:
        step: the columns of a row of kind STEP: of the rank, then those of every module.
        evaluation: the columns of a row of kind EVALUATION.
    """

    step: tuple[str, ...]
    modules: tuple[str, ...]
    evaluation: tuple[str, ...] = EVALUATION_COLUMNS

    @classmethod
    def of(cls, modules: Sequence[str]) -> RowHeader:
        """Return the header of a run that has some modules."""
        per_module = [module_column(m, name) for m in modules for name in LIVE_MODULE_COLUMNS]
        return cls((*LIVE_STEP_COLUMNS, *per_module), tuple(modules))

    def to_json(self) -> dict[str, Any]:
        """Return what the browser reads rows by: names, and how ranks become one."""
        over = {name: str(over_ranks(name)) for name in self.step}
        return {"step": list(self.step), "evaluation": list(self.evaluation), "over": over}

    def row(self, sample: Sample) -> Row | None:
        """Return a sample as [kind, value, value, ...], None for one that no chart draws."""
        if isinstance(sample, StepSample):
            measured = list(_live_step_values(sample))
            for module in self.modules:
                measured += _live_module_values(sample.modules.get(module, _ELSEWHERE))
            return [STEP, *map(_short, self.step, measured)]
        if isinstance(sample, EvaluationSample):
            values = sample.row()
            return [EVALUATION, *(_short(name, values.get(name)) for name in self.evaluation)]
        return None


def phase_columns(modules: Sequence[str]) -> dict[str, str]:
    """Return the phases in stacking order: name in the legend -> column."""
    per_module = {
        f"{module} {phase}": module_column(module, phase.column)
        for phase in MODULE_PHASES
        for module in modules
    }
    waiting = {WAITING: CommunicationPart.WAITING.column}
    per_rank = {str(phase): phase.column for phase in RANK_PHASES}
    first = {str(Phase.COMMUNICATION): per_rank[Phase.COMMUNICATION]}
    return {**per_module, **first, **waiting, **per_rank}


def _short(name: str, value: Any) -> Any:
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return round(value, 3) if name == "time" else float(f"{value:.6g}")


class RowQueue:
    """The rows of a run: those that were not sent yet, and what is kept of all to be drawn.

    Of a long run those of every 2nd, 4th, 8th ... iteration are kept, and of its tests all.

    Attributes:
        most: rows of steps that are kept.
        every: of so many iterations one is kept, and the newest.
        count: rows so far, with those that are not kept.
        last: the newest iteration; -1 before the first.
    """

    def __init__(self, header: RowHeader, most: int = MOST_ROWS) -> None:
        self.header, self.most = header, most
        self.every, self.count, self.last = 1, 0, -1
        self._began, self._ended = math.inf, -math.inf
        self._steps = 0
        self._kept: list[tuple[int, Row]] = []  # with their iteration; a test has 0
        self._newest: list[tuple[int, Row]] = []
        self._waiting: list[Row] = []
        self._lock = threading.Lock()
        self._news = threading.Event()

    @property
    def seconds(self) -> float:
        """From the start of the first step to the end of the last."""
        return max(0.0, self._ended - self._began)

    def add(self, sample: Sample) -> None:
        """Append a sample."""
        row = self.header.row(sample)
        if row is None:
            return
        with self._lock:
            self.count += 1
            self._waiting.append(row)
            if isinstance(sample, StepSample):
                self._keep(sample, row)
            else:
                self._kept.append((0, row))
        self._news.set()

    def wait(self, timeout: float) -> bool:
        """Wait until there are rows that were not taken yet; say whether there are."""
        return self._news.wait(timeout)

    def take(self) -> tuple[int, list[Row]]:
        """Return the rows that were not taken yet, and the place of the first among all."""
        with self._lock:
            self._news.clear()
            rows, self._waiting = self._waiting, []
            return self.count - len(rows), rows

    def history(self) -> dict[str, Any]:
        """Return the rows that are kept, the number of all, and of how many iterations one is."""
        with self._lock:
            newest = (kept for kept in self._newest if kept[0] == self.last)
            rows = [row for _, row in (*self._kept, *newest)]
            return {"count": self.count, "every": self.every, "rows": rows}

    def _keep(self, step: StepSample, row: Row) -> None:
        self._began = min(self._began, step.time - (step.total_time or 0.0))
        self._ended, self.last = max(self._ended, step.time), max(self.last, step.iteration)
        if step.iteration % self.every:
            newest = [kept for kept in self._newest if kept[0] == self.last]
            self._newest = [*newest, (step.iteration, row)]
            return
        self._kept.append((step.iteration, row))
        self._steps += 1
        if self._steps > self.most:
            self._thin()

    def _thin(self) -> None:
        self.every *= 2
        left_out = [kept for kept in self._kept if kept[0] % self.every]
        self._newest += [kept for kept in left_out if kept[0] == self.last]
        self._kept = [kept for kept in self._kept if kept[0] % self.every == 0]
        self._steps -= len(left_out)
