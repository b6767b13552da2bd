"""A notebook that goes away in mid-run, and the one that comes after it."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mimokit.analysis import read_run
from mimokit.cluster import ClusterError, EngineCluster
from mimokit.cluster.local.callers import SOCKET_FILE
from mimokit.cluster.local.entries import connection_file, entry_of
from mimokit.cluster.local.listing import clusters
from mimokit.experiment import reconnect
from mimokit.experiment.results.folder import EARLIER
from tests.cli.call import call
from tests.cluster.test_lifetime import PATIENCE, gone_within

ITERATIONS = 60
CLIENT = f"""
import sys, time
from mimokit.cluster import EngineCluster
from mimokit.experiment import train
from tests.evaluations import QUICK
from tests.layouts import digits_config
cluster = EngineCluster(2, stay=True, name=sys.argv[1], progress=False)
config = digits_config((1, 2), (2, 1), num_iterations={ITERATIONS})
run = train(cluster, config, evaluations=QUICK, directory=sys.argv[2])
while len(run.samples) < 6:
    time.sleep(0.01)
print("trains", flush=True)
time.sleep(600)
"""
RESTARTING = """
import os, signal, sys, time
from mimokit.cluster import EngineCluster
from mimokit.experiment import train
from tests.evaluations import QUICK
from tests.layouts import digits_config
cluster = EngineCluster(2, stay=True, name=sys.argv[1], progress=False)
config = digits_config((1, 2), (2, 1), num_iterations=10_000)
run = train(cluster, config, evaluations=QUICK, directory=sys.argv[2], checkpoints=2, restarts=3)
def await_step(step):
    while not any(getattr(one, "iteration", -1) >= step for one in run.samples):
        assert not run.done
        time.sleep(0.01)
await_step(5)
os.kill(cluster.pids[1], signal.SIGKILL)
while not run.restarts:
    time.sleep(0.01)
await_step(run.restarts[0].step + 5)
print(run.restarts[0].resumed, flush=True)
time.sleep(600)
"""
KNOCK = """
import socket, sys
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except OSError as error:
    print(type(error).__name__)
"""


def test_a_run_goes_on_without_its_notebook_and_is_found_by_another(tmp_path: Path) -> None:
    name, results = f"tests-{os.getpid()}", tmp_path / "results"
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, name, str(results)], stdout=subprocess.PIPE
    )
    assert client.stdout is not None
    with client.stdout:
        assert client.stdout.readline() == b"trains\n"
    refused(name, f"process {client.pid} of this machine uses it: close it there")
    client.send_signal(signal.SIGKILL)
    client.wait()
    directory = Path(entry_of(name).directory)
    only_the_owner_reaches(directory)
    cluster = connected(name)
    try:
        (listed,) = [state for state in clusters() if state.entry.name == name]
        assert (listed.client, listed.engines, listed.run) == (os.getpid(), 2, "train_rank")
        refused(name, f"process {os.getpid()} of this machine uses it")
        run = reconnect(cluster)
        tables = run.result(PATIENCE)
        assert tables.directory == results
        assert sorted(tables.steps["iteration"]) == sorted([*range(ITERATIONS)] * 2)
        found = read_run(results)
        assert (len(found.metrics), found.info["status"]) == (ITERATIONS, "completed")
        assert cluster.run(os.getpid) == list(cluster.pids)
        pids = {pid for pid in cluster.pids if pid is not None}
    finally:
        cluster.close()
        ended = call("clusters", "--end", name)
    assert ended.output == f"Ended {name}.\n"
    assert gone_within(pids, PATIENCE)
    assert not directory.exists()
    refused(name, f"no cluster is called '{name}'")


def test_of_a_run_that_had_begun_again_the_attempt_in_progress_is_found(tmp_path: Path) -> None:
    name, results = f"tests-{os.getpid()}", tmp_path / "results"
    client = subprocess.Popen(
        [sys.executable, "-c", RESTARTING, name, str(results)], stdout=subprocess.PIPE
    )
    assert client.stdout is not None
    with client.stdout:
        resumed = int(client.stdout.readline())
    client.kill()
    client.wait()
    cluster = connected(name)
    try:
        run = reconnect(cluster)
        run.stop()
        steps = run.result(PATIENCE).steps
    finally:
        cluster.end()
    whole = steps.groupby("iteration").size()
    assert list(whole) == [2] * len(whole), "of each step both ranks were heard"
    assert list(whole.index) == [*range(resumed, resumed + len(whole))]
    found = read_run(results)
    assert (len(found.metrics), found.info["status"]) == (len(whole), "stopped")
    (earlier,) = (results / EARLIER).glob("*/metrics.csv")
    assert earlier.read_text().splitlines()[1].startswith("0,"), "rows from the first step on"


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        (None, "is nothing, which does not train"),
        ({}, "is f, which does not train: EngineCluster.last_run has it"),
    ],
)
def test_what_cannot_be_reconnected(note: dict[str, Any] | None, sentence: str) -> None:
    run = None if note is None else SimpleNamespace(name="f", note=note)
    cluster: Any = SimpleNamespace(name="digits", last_run=run)
    with pytest.raises(ValueError, match=sentence):
        reconnect(cluster)


def connected(name: str) -> EngineCluster:
    """Connect, as soon as the server has noticed that its client is gone."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return EngineCluster.connect(name)
        except ClusterError:
            if time.monotonic() > deadline:
                raise


def refused(name: str, sentence: str) -> None:
    with pytest.raises(ClusterError, match=sentence):
        EngineCluster.connect(name)


def only_the_owner_reaches(directory: Path) -> None:
    key = connection_file(directory)
    assert mode(directory) == 0o700
    assert mode(directory / SOCKET_FILE) == mode(key) == 0o600
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None or os.geteuid() != 0:
        return  # nobody else can be tried without the administrator's rights
    socket = str(directory / SOCKET_FILE)
    knocked = subprocess.run(
        [python, "-c", KNOCK, socket], user=65534, group=65534, extra_groups=[],
        capture_output=True, text=True, cwd="/", check=True,
    )  # fmt: skip
    assert knocked.stdout == "PermissionError\n"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
