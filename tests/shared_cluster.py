"""One cluster for all tests that want one, given back idle by each of them."""

import sys
from typing import Any

from mimokit.cluster import ClusterError, ClusterRun, EngineCluster, RunAborted
from tests.leaks import held, leaks

RANK_IMPORTS = ("tests.rank_imports",)
ABORT_SECONDS = 180.0
"""Generous: an aborted rank is back within milliseconds, or killed and replaced within seconds."""


class SharedCluster:
    """A cluster that is started when it is first asked for, and again when it is beyond use."""

    def __init__(self, n: int, **options: Any) -> None:
        """Take what `EngineCluster` is started with."""
        self._options = {"n": n, "progress": False, "preload": RANK_IMPORTS, **options}
        self._cluster: EngineCluster | None = None
        self._before = held([])

    def get(self) -> EngineCluster:
        """Return the cluster, and note what is held before a test uses it."""
        if self._cluster is None:
            self._cluster = EngineCluster(**self._options)
        self._before = held(_pids(self._cluster))
        return self._cluster

    def take_back(self, test: str) -> None:
        """End what a test has left on the engines, so that the next test finds them idle.

        Raises:
            AssertionError: if the test has left something; names the test, and a function, a
                thread, descriptors, a process or shared memory.
        """
        if self._cluster is None:
            return
        left = what_is_left(self._cluster)
        try:
            left += end_what_is_left(self._cluster)
            left += leaks(self._before, _pids(self._cluster))
            if left:  # which is told once
                self._before = held(_pids(self._cluster))
        except ClusterError as error:
            self.close()
            left.append(f"the cluster beyond use ({error}); the next test gets another one")
        assert not left, f"{test} left {' and '.join(left)}"

    def close(self) -> None:
        """End the engines."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


def _pids(cluster: EngineCluster) -> list[int]:
    return [pid for pid in cluster.pids if pid is not None]


def what_is_left(cluster: EngineCluster) -> list[str]:
    """Name the run that is in progress, if there is one."""
    run = cluster.current_run
    return [] if run is None else [f"a run of {run.name} in progress (now aborted)"]


def end_what_is_left(cluster: EngineCluster) -> list[str]:
    """Abort the run in progress and close the open stepper; names the stepper.

    Raises:
        ClusterError: if the cluster cannot run anything afterwards.
    """
    if cluster.current_run is not None:
        _abort(cluster.current_run)
    if cluster.world_size is None:
        return []
    return ["an open stepper (now closed)"] if any(cluster.run(close_open_stepper)) else []


def _abort(run: ClusterRun) -> None:
    run.abort()
    try:
        run.result(ABORT_SECONDS)
    except (ClusterError, RunAborted):
        pass
    except TimeoutError as error:
        raise ClusterError(f"the run of {run.name} cannot be aborted") from error
    if not run.wait_ended(ABORT_SECONDS):
        raise ClusterError(f"ranks of the run of {run.name} do not come back")


def close_open_stepper() -> bool:
    """Close the stepper that is open on this rank; returns whether there was one. Collective."""
    session = sys.modules.get("mimokit.engine.stepper.session")
    if session is None:
        return False
    try:
        session.current()
    except RuntimeError:
        return False
    session.close_session()
    return True
