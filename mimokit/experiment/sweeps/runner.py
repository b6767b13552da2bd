"""Runs the experiments of a sweep in the background, one after another or side by side."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from mimokit.cluster import ClusterError, RunAborted
from mimokit.config import ConfigError, ExperimentConfig, Problem
from mimokit.config.runtime import Evaluations
from mimokit.experiment.background import end_run
from mimokit.experiment.results.info import TimeLimitError
from mimokit.experiment.sweeps.experiments import Experiment
from mimokit.experiment.sweeps.prepared_sweep import PreparedSweep
from mimokit.experiment.sweeps.records import Board, ExperimentRecord, ExperimentStatus
from mimokit.experiment.training import TrainingCluster, TrainingRun, train
from mimokit.result_files import EXPERIMENT_COLUMN, SweepFile
from mimokit.samples import Sample, StepSample

if TYPE_CHECKING:
    from mimokit.engine.data.sources import DataSource
    from mimokit.experiment.sweeps.start import Seats

SampleListener = Callable[[str, Sample], None]


@dataclass(frozen=True)
class SweepResult:
    """What a sweep has left.

    Attributes:
        table: all_experiments.csv: a row per experiment and iteration, the experiment in front.
    """

    experiments: tuple[ExperimentRecord, ...]
    directory: Path
    table: pd.DataFrame


@dataclass(frozen=True)
class Options:
    """How experiments run; `sweep` and `train` say what each option means.

    Raises:
        ConfigError: the time limit is not more than 0.
    """

    time_limit: float | None = None
    data: DataSource | None = None
    evaluations: Evaluations | None = None
    trace: bool = False
    restarts: int = 0

    def __post_init__(self) -> None:
        limit = self.time_limit
        if limit is not None and not limit > 0:
            sentence = f"Sweep: time_limit is {limit!r}; it must be more than 0 seconds."
            raise ConfigError([Problem("sweep", "time_limit", limit, sentence)])


class SweepRun:
    """A sweep in the background; the notebook stays free."""

    def __init__(self, seats: Seats, prepared: PreparedSweep, options: Options) -> None:
        self.directory = prepared.folder.path
        self._seats = seats
        self._chosen = prepared.chosen
        self._board = Board(prepared.records)
        self._folder = prepared.folder
        self._options = options
        self._runs: dict[str, TrainingRun] = {}
        self._listeners: list[SampleListener] = []
        self._skipped: set[str] = set()
        self._stopping = False
        self._changed = threading.Condition(threading.RLock())
        self._ended = threading.Event()
        self._writing = threading.Lock()
        self._started = time.monotonic()
        self._stopped: float | None = None
        threading.Thread(target=self._work, name="mimokit-sweep", daemon=True).start()

    # What there is.

    @property
    def experiments(self) -> tuple[ExperimentRecord, ...]:
        """Every experiment as it is now, in order."""
        return self._board.records

    @property
    def current(self) -> tuple[TrainingRun, ...]:
        """The runs in progress."""
        with self._changed:
            return tuple(self._runs.values())

    @property
    def done(self) -> bool:
        """Whether every experiment has ended, or was given up."""
        return self._ended.is_set()

    @property
    def elapsed(self) -> float:
        """Seconds since the start; constant after the end."""
        return (self._stopped or time.monotonic()) - self._started

    def on_change(self, callback: Callable[[SweepRun], object]) -> None:
        """Call back now and after changes of any record, from a separate thread.

        Changes within a tenth of a second are one call; the last one is never left out.
        """
        self._board.listen(lambda: callback(self))

    def on_sample(self, callback: SampleListener) -> None:
        """Call back with the experiment's name for every sample, from separate threads."""
        with self._changed:
            self._listeners.append(callback)
            for name, run in self._runs.items():
                run.on_sample(lambda sample, name=name: callback(name, sample))  # type: ignore[misc]

    def log_interval(self, name: str) -> int:
        """Return the iterations between two lines about an experiment."""
        config = next(experiment.config for experiment in self._chosen if experiment.name == name)
        return 1 if config is None else config.runtime.log_interval

    # What it can be asked to do.

    def stop(self) -> None:
        """Stop the current experiments after their iteration; start no other.

        Their results are kept. A second call changes nothing; `abort` does not wait.
        """
        with self._changed:
            self._stopping = True
            for run in self._runs.values():
                run.stop()
            self._changed.notify_all()

    def abort(self) -> None:
        """End the current experiments at once; start no other."""
        with self._changed:
            self._stopping = True
            for run in self._runs.values():
                run.abort()
            self._changed.notify_all()

    def skip(self, name: str | None = None) -> None:
        """Leave out an experiment that waits, or end it if it runs; the sweep goes on.

        Args:
            name: of the experiment; None for those in progress.

        Raises:
            KeyError: no experiment has that name.
        """
        with self._changed:
            names = list(self._runs) if name is None else [name]
            for experiment_name in names:
                if self._board[experiment_name].status is ExperimentStatus.WAITING:
                    self._end(experiment_name, ExperimentStatus.SKIPPED, "skipped on request")
                elif not self._board[experiment_name].ended:
                    self._skipped.add(experiment_name)
                    if experiment_name in self._runs:
                        self._runs[experiment_name].abort()
            self._changed.notify_all()

    def wait_ended(self, timeout: float | None = None) -> bool:
        """Wait until every experiment has ended; an interrupt ends the wait alone."""
        return self._ended.wait(timeout)

    def result(self, timeout: float | None = None) -> SweepResult:
        """Wait for the end and return what the sweep has left.

        Experiments that failed raise nothing here; their records say why.

        Raises:
            TimeoutError: the sweep did not end within the timeout; it goes on.
            KeyboardInterrupt: the wait was interrupted; the current experiments are stopped then,
                no other starts, and a second call returns what there is.
            OSError: the table of all experiments cannot be written; call again when it can.
        """
        try:
            ended = self.wait_ended(timeout)
        except KeyboardInterrupt:
            end_run(self)
            raise
        if not ended:
            raise TimeoutError(f"the sweep has not ended after {timeout:g} s")
        self._complete()
        table = self.directory / SweepFile.ALL_EXPERIMENTS
        # So an experiment that is named 007 or nan keeps its name.
        rows = pd.read_csv(table, converters={EXPERIMENT_COLUMN: str})
        return SweepResult(self.experiments, self.directory, rows)

    # How it does it.

    def _work(self) -> None:
        try:
            with self._changed:
                while self._start_what_fits() or self._running():
                    self._changed.wait()
        finally:
            with contextlib.suppress(OSError):
                self._complete()
            self._folder.release()
            self._stopped = time.monotonic()
            self._ended.set()
            self._board.close()

    def _running(self) -> bool:
        return any(record.status is ExperimentStatus.RUNNING for record in self.experiments)

    def _start_what_fits(self) -> bool:
        """Start experiments on free engines; return whether there are others that wait."""
        for experiment in self._chosen:
            record = self._board[experiment.name]
            if record.status is not ExperimentStatus.WAITING:
                continue
            if self._stopping:
                self._end(
                    experiment.name, ExperimentStatus.STOPPED, "the sweep was stopped before it"
                )
            else:
                self._start_if_it_fits(experiment)
        return any(record.status is ExperimentStatus.WAITING for record in self.experiments)

    def _start_if_it_fits(self, experiment: Experiment) -> None:
        try:
            engines = self._seats.take(experiment.ranks or 1)
        except ClusterError as error:
            self._end(experiment.name, ExperimentStatus.FAILED, self._explain(experiment, error))
            return
        if engines is None:
            return
        self._board.update(experiment.name, status=ExperimentStatus.RUNNING, seconds=0.0)
        name = f"mimokit-experiment-{experiment.name}"
        work = threading.Thread(
            target=self._run_one, args=(experiment, engines), name=name, daemon=True
        )
        work.start()

    def _run_one(self, experiment: Experiment, engines: TrainingCluster) -> None:
        began = time.monotonic()
        status, message = ExperimentStatus.FAILED, ""
        try:
            run = self._begin(experiment, engines)
            status = self._await(run)
        except RunAborted:
            skipped = experiment.name in self._skipped
            status = ExperimentStatus.SKIPPED if skipped else ExperimentStatus.STOPPED
            message = "skipped on request" if skipped else "aborted"
        except Exception as error:
            message = self._explain(experiment, error)
        finally:
            seconds = time.monotonic() - began
            with self._changed:
                self._runs.pop(experiment.name, None)
                self._end(experiment.name, status, message, seconds=seconds)
                try:
                    self._seats.give_back(engines)
                finally:
                    self._changed.notify_all()

    def _begin(self, experiment: Experiment, engines: TrainingCluster) -> TrainingRun:
        options = self._options
        run = train(
            engines,
            self._config(experiment),
            options.data,
            evaluations=options.evaluations,
            directory=self._board[experiment.name].directory,
            trace=options.trace,
            restarts=options.restarts,
        )
        run.on_sample(lambda sample: self._count(experiment.name, sample))
        with self._changed:
            self._runs[experiment.name] = run
            for listener in self._listeners:
                run.on_sample(lambda sample, hear=listener: hear(experiment.name, sample))  # type: ignore[misc]
            if experiment.name in self._skipped:
                run.abort()
            elif self._stopping:
                run.stop()
        return run

    def _config(self, experiment: Experiment) -> ExperimentConfig:
        """Return the config to train, with a TensorBoard folder for each of several experiments."""
        assert experiment.config is not None
        config = experiment.config.model_copy(deep=True)
        board = config.runtime.tensorboard_dir
        # TensorBoard draws all files of a folder as one run.
        if board is not None and len(self._chosen) > 1:
            config.runtime.tensorboard_dir = str(Path(board, self.directory.name, experiment.name))
        return config

    def _await(self, run: TrainingRun) -> ExperimentStatus:
        limit = self._options.time_limit
        try:
            run.result(limit)
        except TimeoutError:
            assert limit is not None
            run.abort(because=TimeLimitError(limit))
            run.result()
        steps = (sample for sample in run.each_sample() if isinstance(sample, StepSample))
        done = 1 + max((step.iteration for step in steps), default=-1)
        whole = done >= run.config.runtime.num_iterations
        return ExperimentStatus.COMPLETED if whole else ExperimentStatus.STOPPED

    def _count(self, name: str, sample: Sample) -> None:
        if isinstance(sample, StepSample) and sample.rank == 0:
            run = self._runs.get(name)
            seconds = None if run is None else run.elapsed
            self._board.update(
                name, iteration=sample.iteration + 1, loss=sample.loss, seconds=seconds
            )

    def _explain(self, experiment: Experiment, error: Exception) -> str:
        """Return why an experiment failed; its folder says it too, also if it did not begin."""
        if experiment.name not in self._runs:
            with contextlib.suppress(ValueError):  # a folder that cannot be written
                self._folder.write_refusal(self._board[experiment.name].directory, error)
        notes = getattr(error, "__notes__", ())
        return "; ".join([(str(error) or type(error).__name__).split("\n\n")[0], *notes])

    def _end(
        self,
        name: str,
        status: ExperimentStatus,
        message: str = "",
        *,
        seconds: float | None = None,
    ) -> None:
        self._board.update(name, status=status, message=message, seconds=seconds)
        # The end of the sweep writes it again, and says if it cannot.
        with contextlib.suppress(OSError):
            self._folder.write(self._chosen, self.experiments)

    def _complete(self) -> None:
        with self._writing:
            self._folder.write(self._chosen, self.experiments)
            self._folder.write_table({record.name: record.directory for record in self.experiments})
