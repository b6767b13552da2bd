"""Where the rows of a run go next to its folder: TensorBoard, Weights & Biases, MLflow.

A logger is given the rows of `metrics.csv`, reduced over ranks, as they come. It runs in the
process that writes the run's folder. Libraries are imported when a run that asks for them starts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from mimokit.samples import MODULE_COLUMNS, TEXT_COLUMNS, Row, module_column

_PLACES = ("iteration", "time")
"""Columns that say where on an axis the others belong."""


class Described(Protocol):
    """What loggers say of a run: an `ExperimentConfig`, or the arguments of a fit."""

    @property
    def name(self) -> str:
        """Name of the run."""

    def to_mapping(self) -> dict[str, Any]:
        """Return what was chosen."""

    def to_yaml(self) -> str:
        """Return it as text."""


class Modular(Protocol):
    """What has modules: a `LayoutPlan`, or a fit, which has none."""

    @property
    def modules(self) -> Mapping[str, Any]:
        """The modules by name; each is a group of columns."""


class RunLogger(Protocol):
    """Takes the rows of one run. If it raises, it is called no more; the run goes on."""

    def start(self, config: Described, plan: Modular, directory: Path) -> None:
        """Begin.

        Args:
            config: what was chosen.
            plan: what runs.
            directory: the run's folder, which exists.
        """

    def step(self, row: Row) -> None:
        """Take a row of an iteration, reduced over ranks: column -> value."""

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Take a row of an evaluation: column -> value."""

    def finish(self, status: str) -> None:
        """End.

        Args:
            status: completed, stopped or failed.
        """


def call_loggers(loggers: list[RunLogger], call: Callable[[RunLogger], object]) -> None:
    """Call every logger; one that raises is reported and removed from the list."""
    for logger in list(loggers):
        try:
            call(logger)
        except Exception as error:
            loggers.remove(logger)
            warnings.warn(
                f"{type(logger).__name__} raised {type(error).__name__} ({error}) and is "
                "called no more in this run; the run goes on",
                stacklevel=2,
            )


def scalars(row: Mapping[str, Any], modules: Iterable[str]) -> Iterator[tuple[str, float]]:
    """Yield (group/column, value) of a row of an iteration.

    The groups are time, memory, throughput, loss and training, and every module is one.

    Args:
        row: column -> value.
        modules: of the layout.
    """
    groups = {module_column(m, column): m for m in modules for column in MODULE_COLUMNS}
    for column, value in row.items():
        if column not in _PLACES:
            yield f"{groups.get(column) or _group(column)}/{column}", float(value)


def _group(column: str) -> str:
    if column.endswith("_time"):
        return "time"
    if column.startswith("memory_"):
        return "memory"
    if "_per_sec" in column or column == "model_flop_utilisation":
        return "throughput"
    return "loss" if column.endswith("loss") else "training"


def evaluation_scalars(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield (evaluation/column, value) of a row of an evaluation; values that are None are out."""
    for column, value in row.items():
        if column not in (*_PLACES, *TEXT_COLUMNS, "rank") and value is not None:
            yield f"evaluation/{column}", float(value)
