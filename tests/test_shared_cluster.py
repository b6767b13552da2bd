"""A test that leaves something on the shared engines fails alone, and by name."""

import contextlib
import os
import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from mimokit.cluster import EngineCluster
from mimokit.experiment import Stepper
from tests.cluster.functions import all_reduce_forever, describe_rank
from tests.layouts import digits_config
from tests.leaks import MOST_DESCRIPTORS, leaks
from tests.planted import planted
from tests.shared_cluster import SharedCluster


def works(cluster: EngineCluster) -> bool:
    return [one["sum"] for one in cluster.run(describe_rank, world_size=2)] == [3.0, 3.0]


def test_a_run_left_in_progress_is_named_and_ended(
    cluster: EngineCluster, shared_cluster: SharedCluster
) -> None:
    run = cluster.submit(all_reduce_forever, "none", 0, world_size=2)
    told = "test_x left a run of all_reduce_forever in progress"
    with pytest.raises(AssertionError, match=told):
        shared_cluster.take_back("test_x")
    assert run.done
    assert cluster.current_run is None
    assert works(cluster)
    shared_cluster.take_back("test_x")


def test_a_rank_that_does_not_come_back_is_replaced(
    cluster: EngineCluster, shared_cluster: SharedCluster
) -> None:
    cluster.submit(all_reduce_forever, "deaf", 1, 0.0, world_size=2)
    with pytest.raises(AssertionError, match="test_x left a run of all_reduce_forever"):
        shared_cluster.take_back("test_x")
    assert works(shared_cluster.get())


def test_a_stepper_left_open_is_named_and_closed(
    cluster: EngineCluster, shared_cluster: SharedCluster
) -> None:
    stepper = Stepper(cluster, digits_config((1, 2), (1, 2)))
    stepper.next()
    with pytest.raises(AssertionError, match="test_x left an open stepper"):
        shared_cluster.take_back("test_x")
    shared_cluster.take_back("test_x")
    stepper.close()


def start_a_process() -> int:
    return subprocess.Popen(["sleep", "600"]).pid


@pytest.mark.parametrize("what", ["thread", "descriptors", "process", "shared memory"])
def test_what_a_test_leaves_open_is_named(
    cluster: EngineCluster,
    shared_cluster: SharedCluster,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    """It fails that test, and not the next."""
    monkeypatch.setattr(leaks, "__defaults__", (0.5,))
    with contextlib.ExitStack() as end:
        match what:
            case "thread":
                stop = threading.Event()
                end.callback(stop.set)
                threading.Thread(target=stop.wait, name="planted").start()
                told = "the thread 'planted'"
            case "descriptors":
                for _ in range(MOST_DESCRIPTORS):
                    for descriptor in os.pipe():
                        end.callback(os.close, descriptor)
                told = "sockets and pipes"
            case "process":
                (pid,) = cluster.run(start_a_process, world_size=1)
                end.callback(os.kill, pid, signal.SIGKILL)
                told = f"the process {pid} of an engine"
            case _:
                file = Path("/dev/shm") / f"planted-{os.getpid()}"
                file.touch()
                end.callback(file.unlink)
                told = str(file)
        with pytest.raises(AssertionError, match=f"test_x left .*{told}"):
            shared_cluster.take_back("test_x")
    shared_cluster.take_back("test_x")


def test_a_cluster_beyond_use_is_replaced() -> None:
    shared = SharedCluster(n=1, preload=())
    try:
        first = shared.get()
        assert first.run(os.getpid) == [first.pids[0]]
        first.close()  # a server that dies while nothing runs is started again
        with pytest.raises(AssertionError, match=r"the cluster beyond use \(.*another one"):
            shared.take_back("test_x")
        assert shared.get() is not first
        assert shared.get().run(os.getpid) == [shared.get().pids[0]]
    finally:
        shared.close()


def rank_without_function() -> int:
    return -1


def test_a_fault_is_planted_and_mended(cluster: EngineCluster) -> None:
    target = "tests.cluster.functions.process_id"
    right = cluster.run(called, target, world_size=2)
    with planted(cluster, target, lambda original: lambda: -original(), world_size=2):
        assert cluster.run(called, target, world_size=2) == [-one for one in right]
    assert cluster.run(called, target, world_size=2) == right


def test_a_fault_is_mended_though_the_block_leaves_a_run(cluster: EngineCluster) -> None:
    target = "tests.cluster.functions.process_id"
    told = re.escape(f"the block with a planted {target} left a run of all_reduce_forever")
    with (
        pytest.raises(AssertionError, match=told),
        planted(cluster, target, lambda original: rank_without_function, world_size=2),
    ):
        cluster.submit(all_reduce_forever, "none", 0, world_size=2)
    # An engine may have been replaced: a busy machine keeps its rank from coming back in time.
    pids = {engine.pid for engine in cluster.engines}
    assert set(cluster.run(called, target, world_size=2)) <= pids


def called(target: str) -> int:
    """Call a function by its full name, as whoever imported its module does."""
    import importlib

    module, _, name = target.rpartition(".")
    return int(getattr(importlib.import_module(module), name)())
