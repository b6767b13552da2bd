"""The samples that ranks send while they train, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

STEP_COLUMNS = (
    "rank",
    "iteration",
    "time",
    "total_time",
    "forward_time",
    "backward_time",
    "optimizer_time",
    "communication_time",
    "data_time",
    "tokens_per_sec",
    "samples_per_sec",
    "memory_allocated",
    "memory_reserved",
    "loss",
    "grad_norm",
)
"""Columns of every step table: times in seconds, memory in bytes, rates of all ranks together.
For every module M the columns M_forward_time, M_backward_time and M_tokens_per_sec follow."""

EVALUATION_COLUMNS = (
    "rank",
    "iteration",
    "time",
    "task",
    "exact_match",
    "digit_accuracy",
    "loss",
    "chance",
)
"""Columns of every evaluation table: shares between 0 and 1, time in unix seconds."""


def samples_to_steps(samples: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the training steps, one row per rank and iteration, sorted by iteration and rank."""
    return _table(samples, "step", STEP_COLUMNS, ["iteration", "rank"])


def samples_to_evaluations(samples: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the evaluations, one row per iteration and task, sorted by iteration."""
    return _table(samples, "evaluation", EVALUATION_COLUMNS, ["iteration", "task"])


def _table(
    samples: Iterable[Mapping[str, Any]],
    kind: str,
    columns: tuple[str, ...],
    order: list[str],
) -> pd.DataFrame:
    rows = [
        {name: value for name, value in sample.items() if name != "kind"}
        for sample in samples
        if sample.get("kind") == kind
    ]
    if not rows:
        return pd.DataFrame(columns=list(columns))
    table = pd.DataFrame(rows)
    known = [name for name in columns if name in table.columns]
    others = [name for name in table.columns if name not in columns]
    table = table[known + others]
    present = [name for name in order if name in table.columns]
    return table.sort_values(present, kind="stable", ignore_index=True)
