"""A fit in the background."""

from __future__ import annotations

import copy
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from mimokit.cluster import ClusterRun, EngineCluster, RankError, RunAborted
from mimokit.experiment.background import BackgroundRun
from mimokit.experiment.results import Folder, LoggedRun, RunLogger, call_loggers, error_record
from mimokit.extras.strategies.exchanges import StrategyPlan
from mimokit.extras.strategies.fits.folder import Fit
from mimokit.extras.strategies.fits.job import FitError
from mimokit.extras.strategies.fits.records import MODEL, Begun, records_of
from mimokit.extras.strategies.fits.tables import FitTables, FitTimes, Row
from mimokit.extras.strategies.network import Network, StrategyPrediction
from mimokit.result_files import FIT_COLUMNS, FitFile, RunFile, write_json
from mimokit.samples import Sample, from_wire


@dataclass(frozen=True, kw_only=True)
class FitResult(Fit):
    """What a fit leaves.

    Attributes:
        model: with the mean of all nodes' weights; None if the fit failed.
        prediction: of the fit's time on its network; None without one.
    """

    model: nn.Module | None
    directory: Path
    minibatch_size: int
    notes: tuple[str, ...] = ()
    prediction: StrategyPrediction | None = None


@dataclass
class FitDescription:
    """What monitors read of a fit, where a run has a config; it is its own `runtime`.

    Attributes:
        num_iterations: steps of the whole; 0 as long as only the nodes can know.
    """

    name: str
    num_iterations: int = 0
    warmup_iterations: int = 0

    @property
    def runtime(self) -> FitDescription:
        """The steps."""
        return self


@dataclass(frozen=True)
class FitLayout:
    """What runs: a node per rank, each with the whole model, under a strategy (the mode)."""

    deployment_mode: str
    world_size: int
    modules: Mapping[str, None] = field(default_factory=lambda: {MODEL: None})


@dataclass
class FitSetting:
    """What a fit was given that its result needs.

    Attributes:
        per_row: whether loggers count "step" or "examples".
        plan: what nodes exchange; None for strategies that plan nothing.
        remember: is called with what nodes say before the first step.
    """

    model: nn.Module
    folder: Folder
    loggers: list[RunLogger]
    logged: LoggedRun
    per_row: str
    plan: StrategyPlan | None
    network: Network | None
    own_cluster: EngineCluster | None
    remember: Callable[[Begun], object]


class RowsToLoggers:
    """Gives loggers the rows of training and validation.

    A validation comes from node 0, often before the other nodes have reported its step. It waits
    for them: only then is it known how many examples were trained on.
    """

    def __init__(self, loggers: list[RunLogger], per_row: str) -> None:
        self._loggers, self._per_row = loggers, per_row
        self._step = self._examples = 0
        self._waiting: list[Row] = []

    def take(self, file: FitFile, row: Row) -> None:
        """Log a row, and the validations that have waited for it."""
        if file is FitFile.TRAIN:
            self._step, self._examples = row["step"], row["examples_trained"]
            logged = self._logged(row)
            call_loggers(self._loggers, lambda logger: logger.step(logged))
        elif file is FitFile.VALIDATION:
            self._waiting.append(row)
        while self._waiting and self._waiting[0]["step"] <= self._step:
            self._log_validation()

    def end(self) -> None:
        """Log the validations whose step some nodes have not reported."""
        while self._waiting:
            self._log_validation()

    def _log_validation(self) -> None:
        logged = self._logged(self._waiting.pop(0))
        call_loggers(self._loggers, lambda logger: logger.evaluation(logged))

    def _logged(self, row: Row) -> Row:
        place = row["step"] if self._per_row == "step" else self._examples
        values = {name: value for name, value in row.items() if name != "step"}
        return {"iteration": place, "time": time.time(), **values}


class FitRun(BackgroundRun[FitResult]):
    """A fit in the background; `LiveMonitor` shows it."""

    def __init__(
        self, run: ClusterRun, config: FitDescription, plan: FitLayout, setting: FitSetting
    ) -> None:
        self.config, self.plan, self._setting = config, plan, setting
        self._tables = FitTables(setting.folder.path, plan.world_size)
        self._to_loggers = RowsToLoggers(setting.loggers, setting.per_row)
        self._tables.on_row(self._to_loggers.take)
        self._prediction: StrategyPrediction | None = None
        self._writing = threading.Lock()
        path = setting.folder.path
        call_loggers(setting.loggers, lambda logger: logger.start(setting.logged, path))
        super().__init__(run, path)

    def result(self, timeout: float | None = None) -> FitResult:
        """Wait for the end, complete the folder and return model and tables.

        Raises:
            TimeoutError: the fit did not end within the timeout.
            FitError: a node could not begin or go on; names it.
            RankDied: the process of a node died.
            RankError: a node raised something else.
            RunAborted: the fit was aborted.
        """
        fitted = super().result(timeout)
        for note in fitted.notes:
            warnings.warn(note, stacklevel=2)
        return fitted

    def _sample_of(self, message: Mapping[str, Any]) -> Sample | None:
        try:
            return from_wire(message)
        except KeyError:
            return None

    def _record(self, message: Mapping[str, Any]) -> None:
        with self._writing:
            for record in records_of(message):
                if isinstance(record, Begun):
                    self.config.num_iterations = record.total_steps
                    self._setting.remember(record)
                self._tables.take(record)

    def _reason(self, error: Exception) -> Exception:
        if isinstance(error, RankError) and error.type_name == FitError.__name__:
            return FitError(error.message)
        return super()._reason(error)

    def _complete(self, error: Exception | None) -> None:
        tables, setting = self._tables, self._setting
        try:
            further = None if error is not None else self._times()
            with self._writing:
                tables.write(further)
            if self._prediction is not None:
                write_json(self.directory / FitFile.PREDICTION, self._prediction.to_json())
            if error is not None and not isinstance(error, RunAborted):
                write_json(self.directory / RunFile.ERROR, error_record(error, tables.completed))
        finally:
            setting.folder.release()
            self._to_loggers.end()
            status = "completed" if error is None else "failed"
            call_loggers(self._setting.loggers, lambda logger: logger.finish(status))
            setting.loggers.clear()
            if setting.own_cluster is not None:
                self._run.wait_ended()
                setting.own_cluster.close()

    def _times(self) -> dict[int, dict[str, float]] | None:
        plan, network, times = self._setting.plan, self._setting.network, self._tables.times
        steps = min(self._tables.completed.values())
        if plan is None or network is None or not steps or 1 not in times:
            return None
        times_of_fit = FitTimes.of(plan, network, times, steps)
        self._prediction = times_of_fit.prediction()
        return times_of_fit.columns()

    def _collect(self) -> FitResult:
        begun = self._tables.begun
        tables = {file: pd.DataFrame(self._tables.rows(file)) for file in FIT_COLUMNS}
        return FitResult(
            model=self._model(),
            train=tables[FitFile.TRAIN],
            validation=tables[FitFile.VALIDATION],
            communication=tables[FitFile.COMMUNICATION],
            drift=tables[FitFile.DRIFT],
            directory=self.directory,
            minibatch_size=0 if begun is None else begun.minibatch_size,
            notes=() if begun is None else begun.notes,
            prediction=self._prediction,
        )

    def _model(self) -> nn.Module | None:
        try:
            state = self._run.result(0)[0]
        except Exception:
            return None
        model = copy.deepcopy(self._setting.model)
        model.load_state_dict(state)
        return model
