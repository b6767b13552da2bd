"""Where the rows of a run go next to its folder: TensorBoard, Weights & Biases, MLflow.

A logger is given the rows of `metrics.csv`, reduced over ranks, as they come. It runs in the
process that writes the run's folder. Libraries are imported when a run that asks for them starts.
"""

import importlib.util
import os
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mimokit.config.errors import Problem, refuse_if_any
from mimokit.config.runtime import TENSORBOARD, LoggerName, RuntimeConfig
from mimokit.result_files import BOARD
from mimokit.samples import MODULE_COLUMNS, TEXT_COLUMNS, Row, module_column

_PLACES = ("iteration", "time")
"""Columns that say where on an axis the others belong."""


@dataclass(frozen=True)
class LoggedRun:
    """What loggers say of a run or a fit.

    Attributes:
        modules: each is a group of columns.
        config: what was chosen.
        text: the same as a file.
    """

    name: str
    modules: tuple[str, ...]
    config: Mapping[str, Any]
    text: str


class RunLogger(Protocol):
    """Takes the rows of one run. If it raises, it is called no more; the run goes on."""

    def start(self, run: LoggedRun, directory: Path) -> None:
        """Begin; the run's folder exists."""

    def step(self, row: Row) -> None:
        """Take a row of an iteration, reduced over ranks: column -> value."""

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Take a row of an evaluation: column -> value."""

    def finish(self, status: str) -> None:
        """End; the status is completed, stopped or failed."""


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


PROJECT = "mimokit"
"""Project of Weights & Biases, experiment of MLflow, unless their own variables name one."""
_FLUSH_SECONDS = 5
_ENDED_WELL = ("completed", "stopped")


class _ScalarLogger(ABC):
    _modules: tuple[str, ...]

    @abstractmethod
    def _log(self, tagged: Iterable[tuple[str, float]], row: Mapping[str, Any]) -> None: ...

    def step(self, row: Row) -> None:
        self._log(scalars(row, self._modules), row)

    def evaluation(self, row: Mapping[str, Any]) -> None:
        self._log(evaluation_scalars(row), row)


class TensorBoardLogger(_ScalarLogger):
    """Writes event files for TensorBoard, with torch's `SummaryWriter`.

    Args:
        runtime: its `tensorboard_dir` is the folder; None: `tensorboard` in the run's folder.
    """

    package = "tensorboard"

    def __init__(self, runtime: RuntimeConfig) -> None:
        self._folder = runtime.tensorboard_dir

    def start(self, run: LoggedRun, directory: Path) -> None:
        """Open an event file."""
        from torch.utils.tensorboard import SummaryWriter

        folder = self._folder or str(directory / BOARD)
        self._modules = run.modules
        self._writer = SummaryWriter(folder, flush_secs=_FLUSH_SECONDS)

    def _log(self, tagged: Iterable[tuple[str, float]], row: Mapping[str, Any]) -> None:
        for tag, value in tagged:
            self._writer.add_scalar(tag, value, int(row["iteration"]), walltime=row["time"])

    def finish(self, status: str) -> None:
        """Close the event file."""
        self._writer.close()


class WandbLogger(_ScalarLogger):
    """Logs to Weights & Biases; its environment variables (WANDB_MODE, WANDB_PROJECT, …) apply."""

    package = "wandb"

    def __init__(self, runtime: RuntimeConfig, project: str | None = None) -> None:
        self._run: Any = None
        self._project = project

    def start(self, run: LoggedRun, directory: Path) -> None:
        """Start a run named as the experiment, with the config."""
        import wandb

        self._modules = run.modules
        self._run = wandb.init(
            project=self._project or os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            dir=str(directory),
            config=dict(run.config),
            reinit="create_new",
        )
        # Rows of evaluations may come after the row of a later iteration, which a step may not.
        self._run.define_metric("*", step_metric="iteration")

    def _log(self, tagged: Iterable[tuple[str, float]], row: Mapping[str, Any]) -> None:
        self._run.log({"iteration": int(row["iteration"]), **dict(tagged)})

    def finish(self, status: str) -> None:
        """End the run."""
        self._run.finish(exit_code=0 if status in _ENDED_WELL else 1)


class MlflowLogger(_ScalarLogger):
    """Logs to MLflow; its environment variables (MLFLOW_TRACKING_URI, …) apply."""

    package = "mlflow"

    def __init__(self, runtime: RuntimeConfig) -> None:
        self._client: Any = None

    def start(self, run: LoggedRun, directory: Path) -> None:
        """Create a run named as the experiment, with the config as an artifact."""
        import mlflow

        self._metric = mlflow.entities.Metric
        self._modules = run.modules
        # The client has no active run of the process: experiments may run side by side.
        self._client = mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if known is None else known.experiment_id
        self._run = self._client.create_run(experiment, run_name=run.name).info.run_id
        self._client.log_text(self._run, run.text, "config.yaml")

    def _log(self, tagged: Iterable[tuple[str, float]], row: Mapping[str, Any]) -> None:
        milliseconds = int(1000 * row.get("time", time.time()))
        place = (milliseconds, int(row["iteration"]))
        self._client.log_batch(
            self._run, metrics=[self._metric(tag, value, *place) for tag, value in tagged]
        )

    def finish(self, status: str) -> None:
        """End the run."""
        self._client.set_terminated(self._run, "FINISHED" if status in _ENDED_WELL else "FAILED")


_BACKENDS: Mapping[LoggerName, type[TensorBoardLogger | WandbLogger | MlflowLogger]] = {
    TENSORBOARD: TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
}


def make_loggers(runtime: RuntimeConfig) -> list[RunLogger]:
    """Return the loggers of a config; raises ConfigError if the package of one is missing."""
    names = runtime.chosen_loggers
    refuse_if_any(_missing(name, runtime) for name in names if not _installed(name))
    return [_BACKENDS[name](runtime) for name in names]


def fit_loggers(wandb_project: str | None) -> list[RunLogger]:
    """Return the loggers of a fit: TensorBoard if it is installed, Weights & Biases if asked for.

    Raises:
        ConfigError: Weights & Biases is asked for and not installed.
    """
    runtime, loggers = RuntimeConfig(), list[RunLogger]()
    if _installed(TENSORBOARD):
        loggers.append(TensorBoardLogger(runtime))
    if wandb_project is not None:
        if not _installed("wandb"):
            sentence = (
                f"fit: wandb_project is {wandb_project}, but the package wandb is not installed; "
                "install it, or leave wandb_project out."
            )
            refuse_if_any([Problem("fit", "wandb_project", wandb_project, sentence)])
        loggers.append(WandbLogger(runtime, wandb_project))
    return loggers


def _installed(name: LoggerName) -> bool:
    try:
        return importlib.util.find_spec(_BACKENDS[name].package) is not None
    except ValueError:  # imported already, without a specification
        return True


def _missing(name: LoggerName, runtime: RuntimeConfig) -> Problem:
    package, asked = _BACKENDS[name].package, "loggers"
    if runtime.loggers is None or name not in runtime.loggers:
        asked = "tensorboard_dir"
    extra = "mimokit[lab]" if name == TENSORBOARD else package
    return Problem(
        "runtime",
        asked,
        name,
        f"Section 'runtime': {asked} asks for {name}, but the package {package} is not installed; "
        f"install {extra}, or leave {name} out.",
    )
