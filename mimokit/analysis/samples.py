"""The samples that ranks send while they train, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from mimokit.samples import EVALUATION_COLUMNS, STEP_COLUMNS, EvaluationSample, Sample, StepSample

_FIRST = ("rank", "iteration", "time")
TABLE_COLUMNS = (*_FIRST, *(name for name in STEP_COLUMNS if name not in _FIRST))
"""Columns of every step table, in order; those of modules follow."""


def samples_to_steps(samples: Iterable[Sample]) -> pd.DataFrame:
    """Return the training steps, one row per rank and iteration, sorted by iteration and rank."""
    rows = [sample.row() for sample in samples if isinstance(sample, StepSample)]
    return _table(rows, TABLE_COLUMNS, ["iteration", "rank"])


def samples_to_evaluations(samples: Iterable[Sample]) -> pd.DataFrame:
    """Return the evaluations, one row per iteration and task, sorted by iteration."""
    rows = [sample.row() for sample in samples if isinstance(sample, EvaluationSample)]
    return _table(rows, EVALUATION_COLUMNS, ["iteration", "task"])


def _table(
    rows: Sequence[Mapping[str, Any]], columns: tuple[str, ...], order: list[str]
) -> pd.DataFrame:
    if not rows:
        return pd.DataFrame(columns=list(columns))
    table = pd.DataFrame(rows)
    known = [name for name in columns if name in table.columns]
    others = [name for name in table.columns if name not in columns]
    return table[known + others].sort_values(order, kind="stable", ignore_index=True)
