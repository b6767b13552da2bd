"""Reads the results folder of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from mimokit.samples import (
    EVALUATION_COLUMNS,
    NEEDED_EVALUATION_COLUMNS,
    NEEDED_STEP_COLUMNS,
    STEP_COLUMNS,
    TEXT_COLUMNS,
    RunFile,
)


class RunFolderError(ValueError):
    """A results folder that cannot be read; the message is one sentence."""


@dataclass(frozen=True)
class RunTables:
    """The content of a results folder.

    Attributes:
        directory: the folder the tables were read from.
        info: the content of `experiment_info.json`; empty if the run wrote none.
        metrics: one row per iteration.
        metrics_by_rank: one row per iteration and rank; empty if there is no such file.
        evaluations: one row per evaluation; empty if there is no such file.
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
        info=_read_info(folder / RunFile.INFO),
        metrics=_read_table(metrics_file, NEEDED_STEP_COLUMNS),
        metrics_by_rank=_read_optional(
            folder / RunFile.METRICS_BY_RANK, ("rank", *NEEDED_STEP_COLUMNS), STEP_COLUMNS
        ),
        evaluations=_read_optional(
            folder / RunFile.EVALUATIONS, NEEDED_EVALUATION_COLUMNS, EVALUATION_COLUMNS
        ),
    )


def _read_info(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunFolderError(f"The file {file} is not valid JSON ({error}).") from None
    if not isinstance(content, dict):
        raise RunFolderError(f"The file {file} must contain one JSON object.")
    return content


def _read_optional(file: Path, needed: tuple[str, ...], columns: tuple[str, ...]) -> pd.DataFrame:
    if not file.is_file():
        return pd.DataFrame(columns=list(columns))
    return _read_table(file, needed)


def _read_table(file: Path, needed: tuple[str, ...]) -> pd.DataFrame:
    try:
        table = pd.read_csv(file)
    except pd.errors.EmptyDataError:
        raise RunFolderError(f"The file {file} is empty and has not even a header.") from None
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise RunFolderError(f"The file {file} is not a readable CSV table ({error}).") from None
    for name in needed:
        if name not in table.columns:
            raise RunFolderError(f"The file {file} has no column {name}.")
    for name in table.columns:
        if name not in TEXT_COLUMNS and len(table):
            table[name] = _numbers(file, table[name])
    if table["iteration"].isna().any():
        line = int(table["iteration"].isna().to_numpy().argmax()) + 2
        raise RunFolderError(f"The file {file} has no iteration in line {line}.")
    return table


def _numbers(file: Path, column: pd.Series) -> pd.Series:
    numbers = pd.to_numeric(column, errors="coerce")
    wrong = numbers.isna() & column.notna()
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise RunFolderError(
            f"The file {file} has {column.iloc[row]!r} in line {row + 2} where column "
            f"{column.name} needs a number."
        )
    return numbers
