"""The loggers of `mimokit.experiment.results.loggers`, each around one package."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mimokit.config.errors import Problem, refuse_if_any
from mimokit.config.runtime import TENSORBOARD, LoggerName, RuntimeConfig
from mimokit.experiment.results.loggers import (
    Described,
    Modular,
    RunLogger,
    evaluation_scalars,
    scalars,
)
from mimokit.result_files import BOARD
from mimokit.samples import Row

PROJECT = "mimokit"
"""Project of Weights & Biases, experiment of MLflow, unless their own variables name one."""
_FLUSH_SECONDS = 5
_ENDED_WELL = ("completed", "stopped")


class TensorBoardLogger:
    """Writes event files for TensorBoard, with torch's `SummaryWriter`.

    Args:
        runtime: its `tensorboard_dir` is the folder; None: `tensorboard` in the run's folder.
    """

    package = "tensorboard"

    def __init__(self, runtime: RuntimeConfig) -> None:
        self._folder = runtime.tensorboard_dir

    def start(self, config: Described, plan: Modular, directory: Path) -> None:
        """Open an event file."""
        from torch.utils.tensorboard import SummaryWriter

        folder = self._folder or str(directory / BOARD)
        self._modules = tuple(plan.modules)
        self._writer = SummaryWriter(folder, flush_secs=_FLUSH_SECONDS)

    def step(self, row: Row) -> None:
        """Write the scalars of an iteration."""
        self._write(scalars(row, self._modules), row)

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Write the scalars of an evaluation."""
        self._write(evaluation_scalars(row), row)

    def _write(self, found: Iterable[tuple[str, float]], row: Mapping[str, Any]) -> None:
        for tag, value in found:
            self._writer.add_scalar(tag, value, int(row["iteration"]), walltime=row["time"])

    def finish(self, status: str) -> None:
        """Close the event file."""
        self._writer.close()


class WandbLogger:
    """Logs to Weights & Biases; its environment variables (WANDB_MODE, WANDB_PROJECT, …) apply.

    Args:
        runtime: not read.
        project: of the run, in place of WANDB_PROJECT.
    """

    package = "wandb"

    def __init__(self, runtime: RuntimeConfig, project: str | None = None) -> None:
        self._run: Any = None
        self._project = project

    def start(self, config: Described, plan: Modular, directory: Path) -> None:
        """Start a run named as the experiment, with the config."""
        import wandb

        self._modules = tuple(plan.modules)
        self._run = wandb.init(
            project=self._project or os.environ.get("WANDB_PROJECT", PROJECT),
            name=config.name,
            dir=str(directory),
            config=config.to_mapping(),
            reinit="create_new",
        )
        # Rows of evaluations may come after the row of a later iteration, which a step may not.
        self._run.define_metric("*", step_metric="iteration")

    def step(self, row: Row) -> None:
        """Log an iteration."""
        self._run.log({"iteration": int(row["iteration"]), **dict(scalars(row, self._modules))})

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Log an evaluation."""
        self._run.log({"iteration": int(row["iteration"]), **dict(evaluation_scalars(row))})

    def finish(self, status: str) -> None:
        """End the run."""
        self._run.finish(exit_code=0 if status in _ENDED_WELL else 1)


class MlflowLogger:
    """Logs to MLflow; its environment variables (MLFLOW_TRACKING_URI, …) apply."""

    package = "mlflow"

    def __init__(self, runtime: RuntimeConfig) -> None:
        self._client: Any = None

    def start(self, config: Described, plan: Modular, directory: Path) -> None:
        """Create a run named as the experiment, with the config as an artifact."""
        import mlflow

        self._metric = mlflow.entities.Metric
        self._modules = tuple(plan.modules)
        # The client has no active run of the process: experiments may run side by side.
        self._client = mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if known is None else known.experiment_id
        self._run = self._client.create_run(experiment, run_name=config.name).info.run_id
        self._client.log_text(self._run, config.to_yaml(), "config.yaml")

    def step(self, row: Row) -> None:
        """Log an iteration."""
        self._log(scalars(row, self._modules), row)

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Log an evaluation."""
        self._log(evaluation_scalars(row), row)

    def _log(self, found: Iterable[tuple[str, float]], row: Mapping[str, Any]) -> None:
        milliseconds = int(1000 * row.get("time", time.time()))
        place = (milliseconds, int(row["iteration"]))
        self._client.log_batch(
            self._run, metrics=[self._metric(tag, value, *place) for tag, value in found]
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
    """Return the loggers that a config asks for.

    Raises:
        ConfigError: the package of one is not installed.
    """
    names = runtime.chosen_loggers
    refuse_if_any(_missing(name, runtime) for name in names if not _installed(name))
    return [_BACKENDS[name](runtime) for name in names]


def fit_loggers(wandb_project: str | None) -> list[RunLogger]:
    """Return the loggers of a fit: TensorBoard if it is installed, Weights & Biases if asked for.

    Raises:
        ConfigError: Weights & Biases is asked for and not installed.
    """
    runtime, found = RuntimeConfig(), list[RunLogger]()
    if _installed(TENSORBOARD):
        found.append(TensorBoardLogger(runtime))
    if wandb_project is not None:
        if not _installed("wandb"):
            sentence = (
                f"fit: wandb_project is {wandb_project}, but the package wandb is not installed; "
                "install it, or leave wandb_project out."
            )
            refuse_if_any([Problem("fit", "wandb_project", wandb_project, sentence)])
        found.append(WandbLogger(runtime, wandb_project))
    return found


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
