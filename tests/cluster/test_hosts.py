"""Replicas on two hosts of two engines: network namespaces that a bridge joins."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import mimokit
from mimokit.cluster import EngineCluster, RankError, RankFrozen, link, standstill
from mimokit.config import ExperimentConfig, StrategyConfig
from mimokit.config.runtime import CheckpointConfig
from mimokit.experiment import Stepper, TrainingRun, train, verify
from mimokit.experiment.prepare import with_hosts
from mimokit.planning.checkpoints import steps_in
from mimokit.result_files import CHECKPOINTS
from mimokit_widgets import LiveMonitor
from mimokit_widgets.live.rows import STEP
from tests import seams
from tests.cluster.test_failures import PATIENCE
from tests.cluster.test_streaming import wait_for_samples
from tests.layouts import digits_config
from tests.network_hosts import (
    OWN_DISK,
    Host,
    counted_cable,
    cut_off,
    engines_on,
    network_of,
    skip_without_hosts,
    stand_ins,
)
from tests.symptoms import acted_on_after


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[str, list[Host]]]:
    skip_without_hosts()
    with network_of(["left", "right"]) as found:
        yield found


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="mk") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def hosts(network: tuple[str, list[Host]], folder: Path) -> Iterator[EngineCluster]:
    """A running cluster whose engines came from its hosts in turn."""
    address, (left, right) = network
    with (
        engines_on(address, [left, right, left, right], folder) as file,
        EngineCluster(4, cluster_file=file, progress=False) as cluster,
    ):
        yield cluster


def where() -> tuple[str, str, int]:
    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    dist.all_reduce(total)
    return socket.gethostname(), os.environ["GLOO_SOCKET_IFNAME"], int(total)


def test_a_world_may_be_of_one_host_or_of_both(hosts: EngineCluster) -> None:
    """gloo uses the loopback interface of one host, then the one that joins hosts, then again."""
    assert hosts.hosts == ("left", "right", "left", "right")
    for slots, interface in (((0, 2), "lo"), ((0, 1, 2, 3), "eth0"), ((1, 3), "lo")):
        hosts.form_world(ranks=slots)
        names = [hosts.hosts[slot] for slot in slots]
        assert hosts.run(where) == [(name, interface, len(slots)) for name in names]


def test_only_exchanges_cross_hosts(
    hosts: EngineCluster, network: tuple[str, list[Host]], tmp_path: Path
) -> None:
    """Replicas of two tensor parallel ranks compute what two models in one process compute.

    The cable between hosts carries the bytes of the plan, headers, and what forms the world.
    """
    config = of_two_replicas()
    report = verify(hosts, config, steps=2)
    assert report.passed, report.verdict
    run, crossed = run_and_count(hosts, config, network[1], tmp_path)
    assert only_exchanges(run, crossed)
    assert run.plan.replicas is not None
    assert run.plan.replicas.hosts == ("left", "left", "right", "right")
    assert run.plan.replicas.links(0) == run.plan.replicas.links(1) == (("left", "right"),)
    assert [name for name, _, _ in hosts.run(where)] == ["left", "left", "right", "right"]


def test_replicas_spread_over_hosts_are_seen(
    hosts: EngineCluster,
    network: tuple[str, list[Host]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Engines in the order in which they came: tensor parallel groups cross the cable."""
    monkeypatch.setattr(seams.PLACED, lambda cluster, plan: plan)
    run, crossed = run_and_count(hosts, of_two_replicas(), network[1], tmp_path)
    assert [name for name, _, _ in hosts.run(where)] == ["left", "right", "left", "right"]
    assert not only_exchanges(run, crossed)


def of_two_replicas() -> ExperimentConfig:
    config = digits_config((2, 1), (2, 1), num_iterations=8)
    config.strategy = StrategyConfig(name="diloco", replicas=2, H=2)
    return config


def run_and_count(
    hosts: EngineCluster, config: ExperimentConfig, ends: list[Host], directory: Path
) -> tuple[TrainingRun, list[int]]:
    left, right = ends
    hosts.form_world(ranks=range(4))
    with counted_cable(left, right) as counted:
        run = train(hosts, config, directory=directory)
        run.result()
        return run, counted()


def only_exchanges(run: TrainingRun, crossed: list[int]) -> bool:
    """Whether each host sent what its replica exchanges, and at most 5 % on top."""
    assert run.plan.replicas is not None
    ranks = [run.plan.replicas.plan_of(rank).sent(8) for rank in range(2)]
    planned = [sum(each[replica] for rank in ranks for each in rank.values()) for replica in (0, 1)]
    return all(plan <= sent <= 1.05 * plan for plan, sent in zip(planned, crossed, strict=True))


def test_engines_are_ordered_by_their_hosts(
    cluster: EngineCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the names of hosts alone, where no namespaces can be made; one that fits none is told."""
    monkeypatch.setattr(cluster._formation, "hosts", lambda: ("left", "right") * 4)
    config = digits_config((1, 3), (1, 3))
    config.strategy = StrategyConfig(name="fedavg", replicas=2)
    plan = with_hosts(cluster, mimokit.plan(config))
    assert plan.replicas is not None
    assert plan.replicas.hosts == ("left",) * 3 + ("right",) * 3
    ranks = cluster.run(os.getpid, world_size=6)
    assert ranks == [cluster.pids[slot] for slot in (0, 2, 4, 1, 3, 5)]
    monkeypatch.setattr(cluster._formation, "hosts", lambda: ("left", "right", "left"))
    config.strategy = StrategyConfig(name="fedavg", replicas=1)
    with pytest.warns(UserWarning, match="Replica 0 of 3 ranks is spread over the hosts left, ri"):
        with_hosts(cluster, mimokit.plan(config))


def test_the_commands_of_the_page_start_a_cluster_that_its_profile_finds(
    network: tuple[str, list[Host]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, ends = network
    stand_ins(tmp_path, ends)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {"PATH": path, "IPYTHONDIR": str(tmp_path), "ADDRESS": address}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    page = Path(__file__).parents[2] / "docs" / "hosts.md"
    controller, *engines = re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(engines) == 3
    with contextlib.ExitStack() as stack:
        stack.enter_context(started(controller))
        connection = tmp_path / "profile_mycluster/security/ipcontroller-engine.json"
        while not connection.exists():
            time.sleep(0.05)
        for command in engines:
            stack.enter_context(started(f"{command}\nwait"))
        with EngineCluster(4, profile="mycluster", progress=False) as cluster:
            names = cluster.client[:].apply_async(socket.gethostname).get(PATIENCE)
            assert sorted(names) == ["left", "left", "right", "right"]


@contextlib.contextmanager
def started(command: str) -> Iterator[None]:
    """Run a command of a shell until the end of the block, with all that it starts."""
    shell = subprocess.Popen(["sh", "-c", command], start_new_session=True)
    try:
        yield
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(PATIENCE)


def test_a_folder_of_checkpoints_for_each_host_is_refused(
    hosts: EngineCluster, folder: Path, tmp_path: Path
) -> None:
    config = digits_config((1, 4), (2, 2), num_iterations=1)
    of_each_host = CheckpointConfig(interval=1, directory=str(folder / OWN_DISK))
    with pytest.raises(RankError, match=r"rank 1 does not see what rank 0 writes there; choose"):
        train(hosts, config, checkpoints=of_each_host, directory=tmp_path).result()


def test_a_cut_cable_is_named_and_training_goes_on_when_it_is_back(
    hosts: EngineCluster,
    network: tuple[str, list[Host]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A monitor sees all of it; what is computed is proved, and stepped through."""
    config = digits_config((1, 4), (2, 2), num_iterations=20)
    assert verify(hosts, config, steps=2).passed
    with Stepper(hosts, config) as stepper:
        loss = stepper.run_until(action="report").result["loss"]
    monkeypatch.setattr(standstill, "FIRST_SECONDS", 0.5)
    acted_on_after(monkeypatch, "idle", 1.0)
    monkeypatch.setattr(link, "ANSWER_SECONDS", 1.0)
    run = train(hosts, config, directory=tmp_path, checkpoints=3, restarts=1)
    monitor = LiveMonitor(run)
    first = hosts.current_run
    assert first is not None
    wait_for_samples(first, 12)  # then the length of a step is known
    while not steps_in(tmp_path / CHECKPOINTS):
        assert not first.done
        time.sleep(0.01)
    told = "rank 1 on host right cannot be reached; the next run waits until it can be reached"
    with cut_off(network[1][1]), pytest.raises(RankFrozen, match=told):
        first.result(PATIENCE)
    steps = run.result(PATIENCE).steps
    (restart,) = run.restarts
    assert told in restart.cause
    assert 3 <= restart.resumed <= restart.step
    assert not steps.duplicated(["iteration", "rank"]).any()
    assert len(steps) == 4 * 20
    assert steps["loss"].iloc[0] == loss
    monitor.wait()
    rank = 1 + monitor._rows.header.step.index("rank")
    assert {row[rank] for row in monitor._rows.history()["rows"] if row[0] == STEP} == {0, 1, 2, 3}
