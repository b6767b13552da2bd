"""Starts a sweep on a cluster: on all engines in turn, or on free ones side by side."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Protocol

from mimokit.cluster import ClusterError, EngineCluster
from mimokit.config.runtime import Evaluations
from mimokit.experiment.sweeps.experiments import Experiments, choose, refuse_all
from mimokit.experiment.sweeps.prepared_sweep import find, prepare_sweep
from mimokit.experiment.sweeps.runner import Options, SweepRun
from mimokit.experiment.training import TrainingCluster

if TYPE_CHECKING:
    from mimokit.engine.data.sources import DataSource


class Seats(Protocol):
    """Gives engines to experiments."""

    def take(self, ranks: int) -> TrainingCluster | None:
        """Return engines for a world, None while they are in use."""

    def give_back(self, engines: TrainingCluster) -> None:
        """Take back the engines of an experiment that has ended."""


class NoSeats:
    """No engines, for a sweep in which nothing is left to run."""

    def take(self, ranks: int) -> TrainingCluster | None:
        """Reject the experiment."""
        raise ClusterError("this sweep has no engines")

    def give_back(self, engines: TrainingCluster) -> None:
        """Do nothing: no engines were taken."""


class InTurn:
    """The whole cluster, for one experiment at a time."""

    def __init__(self, cluster: TrainingCluster) -> None:
        self._cluster = cluster
        self._free = threading.Lock()

    def take(self, ranks: int) -> TrainingCluster | None:
        """Return the cluster unless an experiment has it."""
        return self._cluster if self._free.acquire(blocking=False) else None

    def give_back(self, engines: TrainingCluster) -> None:
        """Take the cluster back."""
        self._free.release()


class SideBySide:
    """Parts of the cluster; experiments on separate parts run at the same time."""

    def __init__(self, cluster: EngineCluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._free = set(range(len(cluster)))
        self._taken: dict[TrainingCluster, tuple[EngineCluster, tuple[int, ...]]] = {}

    def take(self, ranks: int) -> TrainingCluster | None:
        """Return the lowest free engines, None if there are not enough."""
        with self._lock:
            if len(self._free) < ranks:
                return None
            slots = tuple(sorted(self._free)[:ranks])
            part = self._cluster.part(slots)
            self._free -= set(slots)
            self._taken[part] = part, slots
            return part

    def give_back(self, engines: TrainingCluster) -> None:
        """Close a part; its engines are free."""
        part, slots = self._taken[engines]
        try:
            part.close()
        finally:
            with self._lock:
                del self._taken[engines]
                self._free |= set(slots)


def sweep(
    cluster: EngineCluster,
    experiments: Experiments | None = None,
    *,
    results_dir: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    strict: bool = False,
    side_by_side: bool = False,
    time_limit: float | None = None,
    data: DataSource | None = None,
    evaluations: Evaluations | None = None,
    trace: bool = False,
) -> SweepRun:
    """Start many experiments on a cluster and return at once.

    One that fails leaves its error.json and the sweep goes on. One whose config is rejected, or
    whose world is larger than the cluster, leaves an error.json with the sentences, also if all of
    several are rejected.

    Args:
        experiments: a folder with YAML files, a file, a config, several of these, or a mapping of
            names to these; None with `resume` for those that the sweep had.
        results_dir: gets a new folder `run_<timestamp>` with a folder per experiment; by default
            `runs`. It comes before `runtime.metrics_output_dir`.
        resume: the folder `run_<timestamp>` of a sweep to go on with. What is complete there, with
            the same config, is skipped.
        strict: start nothing if an experiment is rejected.
        side_by_side: run experiments at the same time where the cluster has free engines.
        time_limit: seconds per experiment; None for no limit.
        data, evaluations, trace: as in `train`.

    Raises:
        ConfigError: there are no experiments, all are rejected or (strict) one is, or the folder
            cannot be written.
    """
    options = Options(time_limit, data, evaluations, trace)
    prepared = prepare_sweep(
        choose(find(experiments, resume), len(cluster)),
        results_dir=results_dir,
        resume=resume,
        strict=strict,
    )
    if prepared.all_refused:
        SweepRun(NoSeats(), prepared, options).result()
        refuse_all(prepared.chosen)
    seats: Seats = SideBySide(cluster) if side_by_side else InTurn(cluster)
    return SweepRun(seats, prepared, options)
