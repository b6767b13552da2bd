"""Reads the results folder of a run, and rejects one that is not whole.

`mimokit.analysis.runs` reads many, and reports what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from mimokit.analysis.table_file import read_table
from mimokit.result_files import RunFile
from mimokit.samples import (
    EVALUATION_COLUMNS,
    NEEDED_EVALUATION_COLUMNS,
    NEEDED_STEP_COLUMNS,
    STEP_COLUMNS,
    TEXT_COLUMNS,
)

KEYS = ("iteration", "rank", "step", "node")
"""The columns that say which row is which, where a table has them."""


class RunFolderError(ValueError):
    """A results folder that cannot be read; the message is one sentence."""


@dataclass(frozen=True)
class RunTables:
    """The content of a results folder.

    Attributes:
        info: the content of `experiment_info.json`; empty if the run wrote none.
        metrics: one row per iteration.
        metrics_by_rank: one row per iteration and rank; empty without that file.
        evaluations: one row per evaluation; empty without that file.
    """

    directory: Path
    info: Mapping[str, Any]
    metrics: pd.DataFrame
    metrics_by_rank: pd.DataFrame
    evaluations: pd.DataFrame

    @property
    def config_file(self) -> Path:
        """The finalized config of the run, as YAML."""
        return self.directory / RunFile.CONFIG


def read_run(directory: str | Path) -> RunTables:
    """Read the results folder of a run.

    Raises:
        RunFolderError: the folder or its `metrics.csv` is missing, or a file is broken.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise RunFolderError(f"There is no results folder at {folder}.")
    metrics_file = folder / RunFile.METRICS
    if not metrics_file.is_file():
        raise RunFolderError(
            f"The folder {folder} has no metrics.csv, so it is not the folder of a run "
            "or the run ended before its first iteration."
        )
    return RunTables(
        directory=folder,
        info=read_object(folder / RunFile.INFO),
        metrics=read_whole(metrics_file, NEEDED_STEP_COLUMNS, ()),
        metrics_by_rank=read_whole(
            folder / RunFile.METRICS_BY_RANK, ("rank", *NEEDED_STEP_COLUMNS), STEP_COLUMNS
        ),
        evaluations=read_whole(
            folder / RunFile.EVALUATIONS, NEEDED_EVALUATION_COLUMNS, EVALUATION_COLUMNS
        ),
    )


def read_object(file: Path) -> Mapping[str, Any]:
    """Return the JSON object of a file; empty without the file.

    Raises:
        RunFolderError: the file holds something else.
    """
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise RunFolderError(f"The file {file} is not valid JSON ({error}).") from None
    if not isinstance(content, dict):
        raise RunFolderError(f"The file {file} must contain one JSON object.")
    return content


def read_whole(
    file: Path,
    needed: Sequence[str],
    columns: Sequence[str],
    texts: Collection[str] = TEXT_COLUMNS,
) -> pd.DataFrame:
    """Return a table of which nothing is wrong; an empty one without the file.

    Args:
        columns: of the empty table.

    Raises:
        RunFolderError: something is wrong with the file.
    """
    if not file.is_file():
        return pd.DataFrame(columns=list(columns))
    content = read_table(file, needed, [name for name in KEYS if name in needed], texts)
    if content.problems:
        raise RunFolderError(content.problems[0].sentence)
    return content.table
