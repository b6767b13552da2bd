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
"""Steps that are kept of a run, about 100 bytes each in a page and ten times as many here."""

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
    """The rows of a run that were not sent yet, and what is kept to be drawn of all."""

    def __init__(self, header: RowHeader, most: int = MOST_ROWS) -> None:
        self.header = header
        self.kept = KeptSamples(most)
        self._waiting: list[Row] = []
        self._lock = threading.Lock()
        self._news = threading.Event()

    def __len__(self) -> int:
        return self.kept.count

    def add(self, sample: Sample) -> None:
        """Append a sample."""
        row = self.header.row(sample)
        if row is not None:
            with self._lock:
                self._waiting.append(row)
                self.kept.add(sample)
            self._news.set()

    def wait(self, timeout: float) -> bool:
        """Wait until there are rows that were not taken yet; say whether there are."""
        return self._news.wait(timeout)

    def take(self) -> tuple[int, list[Row]]:
        """Return the rows that were not taken yet, and the place of the first among all."""
        with self._lock:
            self._news.clear()
            rows, self._waiting = self._waiting, []
            return len(self) - len(rows), rows

    def history(self) -> dict[str, Any]:
        """Return the rows that are kept, the number of all, and of how many iterations one is."""
        with self._lock:
            count, every, samples = len(self), self.kept.every, self.kept.samples()
        return {"count": count, "every": every, "rows": [self.header.row(one) for one in samples]}


class KeptSamples:
    """The steps of a run, of a long one those of every 2nd, 4th, 8th ... iteration, and its tests.

    Attributes:
        every: of so many iterations one is kept, and the newest.
        count: samples so far, with those that are not kept.
        last: the newest iteration; -1 before the first.
        began: Unix seconds, of the start of the first step.
        ended: of the end of the last one.
    """

    def __init__(self, most: int) -> None:
        self.every, self.count, self.last = 1, 0, -1
        self.began, self.ended = math.inf, -math.inf
        self._most, self._steps = most, 0
        self._kept: list[Sample] = []
        self._newest: list[StepSample] = []

    def add(self, sample: Sample) -> None:
        """Take a step or a test."""
        self.count += 1
        if isinstance(sample, StepSample):
            self._add_step(sample)
        else:
            self._kept.append(sample)

    @property
    def seconds(self) -> float:
        """From the start of the first step to the end of the last."""
        return max(0.0, self.ended - self.began)

    def samples(self) -> list[Sample]:
        """Return what is kept, in order of arrival."""
        return [*self._kept, *(step for step in self._newest if step.iteration == self.last)]

    def _add_step(self, step: StepSample) -> None:
        self.began = min(self.began, step.time - (step.total_time or 0.0))
        self.ended, self.last = max(self.ended, step.time), max(self.last, step.iteration)
        if step.iteration % self.every:
            self._newest = [*(one for one in self._newest if one.iteration == self.last), step]
            return
        self._kept.append(step)
        self._steps += 1
        if self._steps > self._most:
            self._thin()

    def _thin(self) -> None:
        self.every *= 2
        kept, self._kept, self._steps = self._kept, [], 0
        for one in kept:
            if not isinstance(one, StepSample) or one.iteration % self.every == 0:
                self._kept.append(one)
                self._steps += isinstance(one, StepSample)
            elif one.iteration == self.last:
                self._newest.append(one)
