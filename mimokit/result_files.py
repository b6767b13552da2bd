"""The files of results folders, and how tables and JSON are written: completely or not at all.

Plain Python, because the notebook, the engines and the command line use it.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from mimokit.samples import (
    EVALUATION_COLUMNS,
    STEP_COLUMNS,
    TOGETHER_COLUMNS,
    EvaluationSample,
    StepSample,
    reduce_ranks,
)

Item = TypeVar("Item")

_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|(API|ACCESS|PRIVATE|JOB|SERVER)_?KEY", re.IGNORECASE
)
_SHORTEST_SECRET = 8
"""Characters; what is shorter is a switch or a number, and part of many words."""


class RunFile(StrEnum):
    """The files of a results folder."""

    CONFIG = "config.yaml"
    INFO = "experiment_info.json"
    METRICS = "metrics.csv"
    METRICS_BY_RANK = "metrics_by_rank.csv"
    EVALUATIONS = "evaluations.csv"
    TRACE = "trace.json"
    ERROR = "error.json"
    HEALTH = "health.json"


RUN_FOLDERS = PROFILES, BOARD = "profile", "tensorboard"
"""The folders of a results folder: of PyTorch's profiler and of TensorBoard."""


CHECKPOINTS = "checkpoints"
"""The folder of a results folder in which ranks save the training state."""


class FitFile(StrEnum):
    """The files of the folder of a fit, next to `RunFile.ERROR`."""

    CONFIG = "config.json"
    TRAIN = "train.csv"
    VALIDATION = "validation.csv"
    COMMUNICATION = "communication.csv"
    DRIFT = "drift.csv"
    PREDICTION = "prediction.json"
    DIGESTS = "digests.json"


FIT_COLUMNS: Mapping[FitFile, tuple[str, ...]] = {
    FitFile.TRAIN: ("step", "examples_trained", "train_loss", "train_perplexity", "lr"),
    FitFile.VALIDATION: (
        "step",
        "local_loss",
        "local_perplexity",
        "global_loss",
        "global_perplexity",
    ),
    FitFile.COMMUNICATION: (
        "step",
        "node",
        "purpose",
        "operation",
        "payload_bytes",
        "sent_bytes",
    ),
    FitFile.DRIFT: ("step", "mean_correlation", "largest_distance"),
}
"""The first columns of each table of a fit; those of metrics and times follow."""

PREDICTED_SECONDS, MEASURED_SECONDS = "predicted_seconds", "seconds"
"""Columns of a fit with a network: time since the first step began, validation aside."""

BY_STRATEGY = "strategy"
"""The purpose of exchanges that a strategy asks for, in the table of communication."""


class SweepFile(StrEnum):
    """The files of the folder of a sweep, next to the results folders of its experiments."""

    SWEEP = "sweep.json"
    ALL_EXPERIMENTS = "all_experiments.csv"


EXPERIMENT_COLUMN = "experiment"
"""The first column of `all_experiments.csv`."""


@dataclass(frozen=True)
class EachTime(Generic[Item]):
    """What a function yields, from the start each time it is read: more than is held at once."""

    read: Callable[[], Iterator[Item]]

    def __iter__(self) -> Iterator[Item]:
        return self.read()


def write_metrics(
    directory: str | os.PathLike[str], iterations: Iterable[Iterable[StepSample]]
) -> None:
    """Write `metrics.csv` (a row per iteration) and `metrics_by_rank.csv` (one per rank too).

    Args:
        directory: made if missing.
        iterations: the steps of all ranks, iteration by iteration. They are read twice.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    further = dict.fromkeys(
        name
        for group in iterations
        for sample in _by_rank(group)
        for name in sample.row()
        if name not in STEP_COLUMNS
    )
    with (
        _table(folder / RunFile.METRICS_BY_RANK, [*STEP_COLUMNS, *further]) as ranks,
        _table(folder / RunFile.METRICS, [*TOGETHER_COLUMNS, *further]) as together,
    ):
        for group in iterations:
            steps = _by_rank(group)
            ranks.writerows(sample.row() for sample in steps)
            together.writerow(reduce_ranks(steps))


def _by_rank(group: Iterable[StepSample]) -> list[StepSample]:
    return sorted(group, key=attrgetter("rank"))


def write_evaluations(
    directory: str | os.PathLike[str], samples: Iterable[EvaluationSample]
) -> None:
    """Write `evaluations.csv` into an existing folder, a row per evaluation."""
    ordered = sorted(samples, key=lambda sample: (sample.iteration, sample.task, sample.rank))
    rows = [sample.row() for sample in ordered]
    write_table(Path(directory) / RunFile.EVALUATIONS, rows, EVALUATION_COLUMNS)


def write_table(path: Path, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Write a CSV file completely or not at all.

    Args:
        rows: column -> value; a missing value is written as an empty cell. They are read twice.
        columns: the first columns; others of the rows follow in order of occurrence.
    """
    further = dict.fromkeys(name for row in rows for name in row if name not in columns)
    with _table(path, [*columns, *further]) as table:
        table.writerows(rows)


@contextmanager
def _table(path: Path, columns: Sequence[str]) -> Iterator[csv.DictWriter[str]]:
    with whole_file(path) as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        yield writer


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file completely or not at all, without secrets of the environment."""
    with whole_file(path) as file:
        file.write(json.dumps(without_secrets_in(content), indent=2) + "\n")


def environment_secrets() -> dict[str, str]:
    """Return value -> name of the environment variables that look like secrets, longest first."""
    names = {
        value: name
        for name, value in os.environ.items()
        if _SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET
    }
    return {value: names[value] for value in sorted(names, key=len, reverse=True)}


def without_secrets(text: str, secrets: Mapping[str, str] | None = None) -> str:
    """Return a text with the names of environment variables in place of their secret values.

    Args:
        secrets: value -> name; by default those of this process.
    """
    for value, name in (environment_secrets() if secrets is None else secrets).items():
        text = text.replace(value, f"[{name}]")
    return text


def without_secrets_in(content: Any) -> Any:
    """Return plain data without secrets of the environment in its texts."""
    secrets = environment_secrets()
    return _without(content, secrets) if secrets else content


def _without(content: Any, secrets: Mapping[str, str]) -> Any:
    if isinstance(content, str):
        return without_secrets(content, secrets)
    if isinstance(content, Mapping):
        return {key: _without(value, secrets) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_without(value, secrets) for value in content]
    return content


@contextmanager
def whole_file(path: Path) -> Iterator[IO[str]]:
    """Open a text file that replaces `path` when it is complete, or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)  # a link there would be followed
    try:
        with part.open("x", newline="", encoding="utf-8") as file:
            yield file
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
