"""The engines of an experiment of a sweep: all of them in turn, or free ones side by side."""

from __future__ import annotations

import threading
from typing import Protocol

from mimokit.cluster import ClusterError, EngineCluster
from mimokit.experiment.training import TrainingCluster


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
