"""A training run on a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from mimokit.analysis import samples_to_evaluations, samples_to_steps
from mimokit.cluster import ClusterRun, EngineCluster
from mimokit.config import ExperimentConfig, check_runnable
from mimokit.config.evaluations import Evaluations
from mimokit.experiment import on_rank
from mimokit.experiment.prepare import Config, prepared
from mimokit.experiment.results import new_folder, write_error, write_results
from mimokit.planning import plan as make_plan
from mimokit.planning.types import LayoutPlan
from mimokit.samples import Sample, from_wire

if TYPE_CHECKING:
    from mimokit.engine.data.sources import DataSource

_PATIENCE = 10.0
"""Seconds that an interrupted run may take to finish its iteration."""


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


class TrainingRun:
    """A run in the background; the notebook stays free.

    Attributes:
        config: the finalized config.
        plan: the layout.
        directory: of the results.
    """

    def __init__(
        self, run: ClusterRun, config: ExperimentConfig, plan: LayoutPlan, directory: Path
    ) -> None:
        self._run = run
        self.config = config
        self.plan = plan
        self.directory = directory
        self._result: TrainingResult | None = None
        self._lock = threading.Lock()

    @property
    def samples(self) -> list[Sample]:
        """What the ranks have sent so far."""
        return [from_wire(message) for message in self._run.samples]

    def on_sample(self, callback: Callable[[Sample], None]) -> None:
        """Call back for every sample, earlier ones included, from a separate thread."""
        self._run.on_sample(lambda message: callback(from_wire(message)))

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

    def abort(self) -> None:
        """End the run at once; the ranks become free, the current iteration is lost."""
        self._run.abort()

    def result(self, timeout: float | None = None) -> TrainingResult:
        """Wait for the end, write the run's folder and return the tables.

        Args:
            timeout: seconds; None waits indefinitely.

        Raises:
            TimeoutError: the run did not end within the timeout.
            KeyboardInterrupt: the wait was interrupted; the run is stopped then, and a second
                call returns its result so far.
            RankError: a rank failed; error.json in the run's folder says which and how.
        """
        try:
            self._run.result(timeout)
        except TimeoutError:
            raise
        except KeyboardInterrupt:
            self._end()
            raise
        except Exception as error:
            self._write_error(error)
            raise
        with self._lock:
            if self._result is None:
                self._result = self._write()
            return self._result

    def _end(self) -> None:
        """Stop after the current iteration; abort if that takes too long."""
        self.stop()
        try:
            self._run.result(_PATIENCE)
        except TimeoutError:
            self.abort()

    def _write(self) -> TrainingResult:
        samples = self.samples
        write_results(self.directory, self.config, self.plan, samples, self.elapsed)
        steps, evaluations = samples_to_steps(samples), samples_to_evaluations(samples)
        return TrainingResult(steps, evaluations, self.directory)

    def _write_error(self, error: Exception) -> None:
        write_results(self.directory, self.config, self.plan, self.samples, self.elapsed)
        write_error(self.directory, error)


def train(
    cluster: EngineCluster,
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
            under `runs/`.
        trace: time every step of the schedule on all ranks, into `trace.json`; opens in Perfetto,
            and `mimokit.analysis.read_trace` reads it.

    Raises:
        ConfigError: the config is wrong or cannot run yet.
        ValueError: the cluster has too few engines.
    """
    ready = prepared(config)
    check_runnable(ready)
    plan = make_plan(ready)
    folder = Path(directory or ready.runtime.metrics_output_dir or new_folder(ready.name))
    # This process writes the tables from the samples of the ranks: on a cluster of many hosts
    # the ranks may not reach its folder.
    remote = ready.model_copy(
        update={"runtime": ready.runtime.model_copy(update={"metrics_output_dir": None})}
    )
    run = cluster.submit(
        on_rank.train_rank, plan, remote, data, evaluations, trace, world_size=plan.world_size
    )
    return TrainingRun(run, ready, plan, folder)
