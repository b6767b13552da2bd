"""A training run on a cluster."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd

from mimokit.analysis import samples_to_evaluations, samples_to_steps
from mimokit.cluster import ClusterRun
from mimokit.config import ExperimentConfig
from mimokit.config.evaluations import Evaluations
from mimokit.experiment import on_rank
from mimokit.experiment.logger_backends import make_loggers
from mimokit.experiment.prepare import Config, check_trainable, prepared
from mimokit.experiment.results.folder import Folder, new_folder, unwritable
from mimokit.experiment.results.info import Setting
from mimokit.experiment.results.writer import RunWriter
from mimokit.planning import plan as make_plan
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.peak import peak_of_hardware
from mimokit.samples import ProfileSample, RankFacts, Sample, from_wire

if TYPE_CHECKING:
    from mimokit.engine.data.sources import DataSource

_OF_THE_FOLDER = (RankFacts, ProfileSample)
"""Samples that are for the run's folder alone."""
_PATIENCE = 10.0
"""Seconds that an interrupted run may take to finish its iteration."""
_WRITING = 30.0
"""Seconds that the rows of a run that has ended may take to be appended."""
_ABORT_PATIENCE = 10.0
"""Seconds that an aborted run may take to end."""


@dataclass(frozen=True)
class TrainingResult:
    """The tables of a run.

    Attributes:
        steps: one row per rank and iteration.
        evaluations: one row per test on held-out samples.
        directory: the run's folder: config.yaml, experiment_info.json, metrics.csv,
            metrics_by_rank.csv, evaluations.csv, and trace.json of a traced run.
    """

    steps: pd.DataFrame
    evaluations: pd.DataFrame
    directory: Path


class TrainingCluster(Protocol):
    """Ranks to train on: an `EngineCluster`, a part of one, or a torchrun job."""

    def __len__(self) -> int:
        """Return the number of ranks."""

    def submit(
        self,
        function: Callable[..., Any],
        plan: LayoutPlan,
        config: ExperimentConfig,
        data: DataSource | None,
        evaluations: Evaluations | None,
        trace: bool,
        peak_flops: float | None,
        /,
        *,
        world_size: int,
    ) -> ClusterRun:
        """Start `on_rank.train_rank` on the first ranks and return at once."""


class TrainingRun:
    """A run in the background; the notebook stays free.

    Its rows are appended to the tables of its folder as they come, and the folder is completed at
    the end, whether or not anybody waits for the result.

    Attributes:
        config: the finalized config.
        plan: the layout.
        directory: of the results.
    """

    def __init__(
        self,
        run: ClusterRun,
        config: ExperimentConfig,
        plan: LayoutPlan,
        directory: Path,
        writer: RunWriter,
    ) -> None:
        self._run = run
        self.config = config
        self.plan = plan
        self.directory = directory
        self._writer = writer
        self._result: TrainingResult | None = None
        self._complete = False
        self._cause: Exception | None = None
        self._lock = threading.Lock()
        self._taken = threading.Condition()
        self._messages_taken = 0
        run.on_sample(self._take)
        threading.Thread(target=self._keep, name="mimokit-results", daemon=True).start()

    @property
    def samples(self) -> list[Sample]:
        """What the ranks have sent so far."""
        found = (from_wire(message) for message in self._run.samples)
        return [sample for sample in found if not isinstance(sample, _OF_THE_FOLDER)]

    def on_sample(self, callback: Callable[[Sample], None]) -> None:
        """Call back for every sample, earlier ones included, from a separate thread."""

        def hear(message: dict[str, object]) -> None:
            sample = from_wire(message)
            if not isinstance(sample, _OF_THE_FOLDER):
                callback(sample)

        self._run.on_sample(hear)

    @property
    def done(self) -> bool:
        """Whether the run has ended, successfully or not."""
        return bool(self._run.done)

    @property
    def elapsed(self) -> float:
        """Seconds since the start; constant after the end."""
        return float(self._run.elapsed)

    def stop(self) -> None:
        """Ask all ranks to stop after the current iteration; the result is kept."""
        self._run.stop()

    def abort(self, because: Exception | None = None) -> None:
        """End the run at once; the ranks become free, the current iteration is lost.

        Args:
            because: what `result` raises, and error.json says, instead of `RunAborted`.
        """
        self._cause = self._cause or because
        self._run.abort()

    def result(self, timeout: float | None = None) -> TrainingResult:
        """Wait for the end, complete the run's folder and return the tables.

        Args:
            timeout: seconds; None waits indefinitely.

        Raises:
            TimeoutError: the run did not end within the timeout.
            KeyboardInterrupt: the wait was interrupted; the run is stopped then, and a second
                call returns its result so far.
            RankError: a rank failed; error.json in the run's folder says which and how.
            OSError: the folder cannot be written (any more). The samples are kept: call again
                when it can.
        """
        try:
            self._run.result(timeout)
        except TimeoutError:
            raise
        except KeyboardInterrupt:
            self._end()
            raise
        except Exception as error:
            failure = self._reason(error)
            try:
                self._write(failure)
            except OSError as unwritten:
                _note(failure, f"{_incomplete(self.directory)}: {unwritten}")
            raise failure from None
        try:
            return self._write(None)
        except OSError as unwritten:
            _note(unwritten, f"{_incomplete(self.directory)}; call result() again when it can be")
            raise

    def _reason(self, error: Exception) -> Exception:
        from mimokit.cluster import RunAborted

        return self._cause if self._cause and isinstance(error, RunAborted) else error

    def _end(self) -> None:
        """Stop after the current iteration; abort if that takes too long, or at an interrupt."""
        with contextlib.suppress(KeyboardInterrupt):
            self.stop()
            self._run.wait_ended(_PATIENCE)
        if not self._run.done:
            self.abort()
        # Until then the cluster refuses the next run.
        self._run.wait_ended(_ABORT_PATIENCE)

    def _take(self, message: dict[str, object]) -> None:
        # What cannot be appended now is written at the end.
        with contextlib.suppress(OSError):
            self._writer.take(from_wire(message))
        with self._taken:
            self._messages_taken += 1
            self._taken.notify_all()

    def _keep(self) -> None:
        """Complete the folder also if nobody asks for the result; who asks hears of failures."""
        with contextlib.suppress(Exception):
            self.result()

    def _write(self, error: Exception | None) -> TrainingResult:
        with self._lock:
            if not self._complete:
                self._await_rows()
                self._writer.finish(self.samples, self.elapsed, error)
                self._complete = True
            if self._result is None:
                samples = self.samples
                steps, evaluations = samples_to_steps(samples), samples_to_evaluations(samples)
                self._result = TrainingResult(steps, evaluations, self.directory)
            return self._result

    def _await_rows(self) -> None:
        """Wait until every message has been taken, so that no row comes after the whole tables."""
        sent = len(self._run.samples)
        with self._taken:
            self._taken.wait_for(lambda: self._messages_taken >= sent, _WRITING)


def _incomplete(directory: Path) -> str:
    return f"the results in {directory} could not be written completely"


def _note(error: BaseException, text: str) -> None:
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)


def train(
    cluster: TrainingCluster,
    config: Config,
    data: DataSource | None = None,
    *,
    evaluations: Evaluations | None = None,
    directory: str | Path | None = None,
    trace: bool = False,
) -> TrainingRun:
    """Start training a layout and return at once.

    Args:
        cluster: with at least as many engines as the layout has ranks.
        config: a config, or the path of one.
        data: makes the training and test data on every rank; by default strips of digits if the
            model can read them, else noise.
        evaluations: when and on how much to test.
        directory: for the results; by default `runtime.metrics_output_dir`, else a new folder
            under `runs/`. The files of an earlier run in it are moved into its `earlier/`.
        trace: time every step of the schedule on all ranks, into `trace.json`; opens in Perfetto,
            and `mimokit.analysis.read_trace` reads it.

    Raises:
        ConfigError: the config is wrong or cannot run yet, or the folder cannot be written.
        ValueError: the cluster has too few engines.
    """
    ready = prepared(config)
    check_trainable(ready)
    plan = make_plan(ready)
    loggers = make_loggers(ready.runtime)
    peak = peak_of_hardware(ready.runtime, plan.world_size)
    named = Path(directory or ready.runtime.metrics_output_dir or new_folder(ready.name))
    folder = Folder.claim(named)
    # This process writes the tables from the samples of the ranks: on a cluster of many hosts
    # the ranks may not reach its folder.
    remote = ready.model_copy(
        update={"runtime": ready.runtime.model_copy(update={"metrics_output_dir": None})}
    )
    try:
        writer = RunWriter(folder, Setting(ready, plan), loggers)
        run = cluster.submit(
            on_rank.train_rank,
            plan,
            remote,
            data,
            evaluations,
            trace,
            peak,
            world_size=plan.world_size,
        )
    except BaseException:
        folder.release()
        raise
    return TrainingRun(run, ready, plan, named, _begun(writer, run, named))


def _begun(writer: RunWriter, run: ClusterRun, directory: Path) -> RunWriter:
    """Write the first files of a run; abort it if that fails."""
    try:
        writer.begin()
    except OSError as error:
        run.abort()
        writer.release()
        raise unwritable(directory, error) from None
    return writer
