"""Clusters start, connect, close, and leave no process behind."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import ipyparallel
import psutil
import pytest

from mimokit.cluster import ClusterError, EngineCluster, RankDied, link
from mimokit.cluster.local import pool
from mimokit.cluster.local.callers import Caller
from mimokit.cluster.local.entries import ENGINE_FILE, ClusterEntry, connection_file
from mimokit.cluster.local.listing import clusters
from mimokit.cluster.local.server import EngineServer
from mimokit.cluster.process import is_stopped
from tests.cluster.functions import (
    all_reduce_forever,
    describe_rank,
    process_id,
    train_until_stopped,
)
from tests.cluster.test_streaming import wait_for_samples
from tests.waiting import wait_until

PATIENCE = 180.0
"""Seconds that processes may take to end on a busy machine."""


def test_close_leaves_no_process() -> None:
    before = descendants()
    small = EngineCluster(n=2, preload=("torch",), progress=False)
    assert len(small.run(describe_rank)) == 2
    started = descendants() - before
    assert len(started) >= 4
    small.close()
    assert gone_within(started, PATIENCE)
    small.close()
    assert "closed" in repr(small)


@pytest.mark.parametrize("half", [None, "", '{"key": "5e'])
def test_engines_wait_for_a_controller_that_is_still_writing(
    half: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = connection_file(tmp_path, ENGINE_FILE)
    file.parent.mkdir(parents=True)
    if half is not None:
        file.write_text(half)
    started: list[int] = []
    entry = ClusterEntry(str(tmp_path), "plain", False, 1, 30.0, ())
    server = EngineServer(entry)
    monkeypatch.setattr(server, "_start_engine", started.append)
    one, other = socket.socketpair()
    with one, other:
        server._client = Caller(one)
        server._obey(server._client, {"command": "start", "engine_id": 7})
        server._obey(Caller(other), {"command": "start", "engine_id": 8})
    server._start_wanted()
    assert started == []
    whole = {"interface": f"ipc://{tmp_path}/socket", "mux": 7, "broadcast": [8, 9]}
    file.write_text(json.dumps(whole))
    server._start_wanted()
    server._start_wanted()
    assert started == [7]
    names = {one.name for one in tmp_path.glob("socket:*")}
    assert names == {"socket:7", "socket:8", "socket:9"}


def test_a_forgotten_cluster_is_closed() -> None:
    before = descendants()
    small = EngineCluster(n=1, preload=(), progress=False)
    started = descendants() - before
    assert started
    del small
    assert gone_within(started, PATIENCE)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_engines_end_with_the_client(number: int, tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text(
        "import time\n"
        "from mimokit.cluster import EngineCluster\n"
        "cluster = EngineCluster(n=2, preload=(), progress=False)\n"
        "print(cluster._pool.directory, flush=True)\n"
        "time.sleep(600)\n"
    )
    client = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    assert client.stdout is not None
    directory = Path(client.stdout.readline().decode().strip())
    assert directory.is_dir()
    family = {child.pid for child in psutil.Process(client.pid).children(recursive=True)}
    assert len(family) >= 4
    client.send_signal(number)
    client.wait()
    client.stdout.close()
    assert gone_within(family, PATIENCE)
    assert not directory.exists()
    assert not [state for state in clusters() if state.entry.directory == str(directory)]


def test_plain_engines() -> None:
    before = descendants()
    with EngineCluster(n=2, launch="plain", progress=False) as plain:
        started = descendants() - before
        assert "forked" not in repr(plain)
        assert [one["sum"] for one in plain.run(describe_rank)] == [3.0, 3.0]
        with pytest.raises(RankDied, match="rank 1"):
            plain.run(all_reduce_forever, "kill", 1)
        assert [one["sum"] for one in plain.run(describe_rank)] == [3.0, 3.0]
        started |= descendants() - before
    assert gone_within(started, PATIENCE)


@pytest.mark.parametrize("victim", ["engine server", "ipyparallel controller"])
def test_a_process_that_all_engines_need_is_stopped_or_dies_in_a_run(
    victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "CONTINUE_SECONDS", 0.5)
    before = set(psutil.Process().children())
    with EngineCluster(n=1, preload=(), progress=False) as small:
        (server,) = set(psutil.Process().children()) - before
        family = {child.pid for child in server.children(recursive=True)}
        (controller,) = [child for child in server.children() if child.pid not in small.pids]
        run = small.submit(train_until_stopped)
        process = server if victim == "engine server" else controller
        told = rf"{victim.split()[-1]} \(process {process.pid}\) was stopped .* told to go on"
        with pytest.warns(RuntimeWarning, match=told) as warned:
            _stop_until_told_to_go_on(process, warned)
        assert not run.done
        process.kill()
        sentence = f"the {victim} has died: close this cluster and start another"
        with pytest.raises(ClusterError, match=sentence) as caught:
            run.result(PATIENCE)
        assert not isinstance(caught.value, RankDied)
        with pytest.raises(ClusterError, match=sentence):
            small.run(process_id)
    assert gone_within(family, PATIENCE)


@pytest.mark.parametrize("victim", ["engine server", "ipyparallel controller"])
def test_a_process_that_all_engines_need_dies_while_nothing_runs_and_is_started_again(
    victim: str,
) -> None:
    before = set(psutil.Process().children())
    with EngineCluster(n=1, preload=(), progress=False) as small:
        (pid,) = small.run(process_id)
        (server,) = set(psutil.Process().children()) - before
        family = {child.pid for child in server.children(recursive=True)}
        (controller,) = [child for child in server.children() if child.pid not in small.pids]
        (server if victim == "engine server" else controller).kill()
        while not small._failed_idle:
            time.sleep(0.01)
        with pytest.warns(RuntimeWarning, match=f"the {victim} has died; its engines are started"):
            (again,) = small.run(process_id)
        assert again != pid
        assert small.run(process_id) == [again]
    assert gone_within(family, PATIENCE)


def test_connect_to_a_running_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = ipyparallel.Cluster(
        n=2, profile_dir=str(tmp_path / "profile"), cluster_id="theirs", log_level=40
    )
    theirs.start_cluster_sync()
    nannies: list[psutil.Process] = []
    try:
        client = theirs.connect_client_sync()
        client.wait_for_engines(2, interactive=False)
        nannies = [
            child
            for child in psutil.Process().children(recursive=True)
            if child.status() != psutil.STATUS_ZOMBIE  # left by another test, without a command
            and "ipyparallel.engine.nanny" in child.cmdline()
        ]
        assert nannies
        security = tmp_path / "profile" / "security"
        for name in ("cluster-theirs.json", "ipcontroller-theirs-client.json"):
            with EngineCluster(cluster_file=security / name, progress=False) as ours:
                check_connected(ours)
        check_clients(security / "cluster-theirs.json", monkeypatch)
        with pytest.raises(ClusterError, match="1 of 2 engines have died"):
            check_death(security / "cluster-theirs.json")
        client.close()
    finally:
        theirs.stop_cluster_sync()
        for nanny in nannies:  # ipyparallel's own; that of an engine that was killed never ends
            with contextlib.suppress(psutil.NoSuchProcess):
                nanny.kill()


def check_connected(cluster: EngineCluster) -> None:
    assert repr(cluster) == "<EngineCluster of 2 engines (connected), no world yet>"
    assert [one["sum"] for one in cluster.run(describe_rank)] == [3.0, 3.0]
    seen: list[object] = []
    assert len(cluster.run(process_id, world_size=1, on_sample=seen.append)) == 1


def check_clients(cluster_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients use the same engines, in turn, and parts of them at the same time."""
    with (
        EngineCluster(cluster_file=cluster_file, progress=False) as first,
        EngineCluster(cluster_file=cluster_file, progress=False) as second,
    ):
        run = first.submit(train_until_stopped)
        wait_for_samples(run, 2)
        in_use = "another client uses engine 0: wait until its run"
        with monkeypatch.context() as patch:
            patch.setattr(link, "BUSY_SECONDS", 1.0)
            with pytest.raises(ClusterError, match=in_use):
                second.run(process_id)
        run.stop()
        assert len(set(run.result(PATIENCE))) == 1
        for client in (second, first, second):
            assert [one["sum"] for one in client.run(describe_rank)] == [3.0, 3.0]
        with second.part([0]) as left, second.part([1]) as right:
            runs = [part.submit(train_until_stopped) for part in (left, right)]
            for one in runs:
                wait_for_samples(one, 2)
            for one in runs:
                one.stop()
                assert len(one.result(PATIENCE)) == 1


def check_death(cluster_file: Path) -> None:
    with EngineCluster(cluster_file=cluster_file, progress=False) as cluster:
        with pytest.raises(RankDied, match="rank 1"):
            cluster.run(all_reduce_forever, "kill", 1)
        cluster.run(process_id)


def descendants() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def alive(pids: set[int]) -> set[int]:
    return {
        pid
        for pid in pids
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    }


def gone_within(pids: set[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _stop_until_told_to_go_on(process: psutil.Process, warned: pytest.WarningsRecorder) -> None:
    process.suspend()
    wait_until(lambda: is_stopped(process.pid))
    wait_until(lambda: not is_stopped(process.pid))
    wait_until(lambda: len(warned) > 0)  # the process is told before the user is
