"""Samples as the short rows that travel to a browser, and the queue they wait in."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from mimokit.packed_list import PackedList
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
    """Return a value as JSON takes it; six figures are more than a screen shows."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return round(value, 3) if name == "time" else float(f"{value:.6g}")


class RowQueue:
    """Every row of a run in order of arrival, and how far they have been sent."""

    def __init__(self, header: RowHeader) -> None:
        self.header = header
        self._rows = PackedList[Row]()
        self._sent = 0
        self._lock = threading.Lock()
        self._news = threading.Event()

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, sample: Sample) -> None:
        """Append a sample."""
        row = self.header.row(sample)
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
            return start, list(self._rows.from_place(start))

    def everything(self) -> list[Row]:
        """Return all rows so far, taken or not."""
        with self._lock:
            return list(self._rows)


def thinned(rows: Sequence[Row], header: Mapping[str, Any], most: int) -> tuple[list[Row], int]:
    """Return at most about `most` rows, and every how many iterations of them are left.

    Evaluations and the last iteration are always kept.

    Args:
        header: from `RowHeader.to_json`.
    """
    every = max(1, -(-len(rows) // most))
    place = 1 + header["step"].index("iteration")
    last = max((row[place] for row in rows if row[0] == STEP), default=0)
    kept = [row for row in rows if row[0] != STEP or row[place] % every == 0 or row[place] == last]
    return kept, every
