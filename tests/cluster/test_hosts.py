"""Replicas on two hosts of two engines: network namespaces that a bridge joins."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import mimokit
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig, StrategyConfig
from mimokit.experiment import TrainingRun, train, verify
from mimokit.experiment.prepare import placed
from tests.layouts import digits_config
from tests.network_hosts import (
    Host,
    counted_cable,
    engines_on,
    network_of,
    skip_without_hosts,
)


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[str, list[Host]]]:
    """The address of this machine, and two hosts."""
    skip_without_hosts()
    with network_of(["left", "right"]) as found:
        yield found


@pytest.fixture(scope="module")
def hosts(network: tuple[str, list[Host]]) -> Iterator[EngineCluster]:
    """A running cluster whose engines came from its hosts in turn."""
    address, (left, right) = network
    with (
        tempfile.TemporaryDirectory(prefix="mk") as folder,
        engines_on(address, [left, right, left, right], Path(folder)) as file,
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
    monkeypatch.setattr("mimokit.experiment.training.placed", lambda cluster, plan: plan)
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
    """Train, and return the run and the bytes that each host sent to the other."""
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
    """By the names of hosts alone, where no namespaces can be made."""
    monkeypatch.setattr(cluster._formation, "hosts", lambda: ("left", "right") * 4)
    config = digits_config((1, 3), (1, 3))
    config.strategy = StrategyConfig(name="fedavg", replicas=2)
    plan = placed(cluster, mimokit.plan(config))
    assert plan.replicas is not None
    assert plan.replicas.hosts == ("left",) * 3 + ("right",) * 3
    ranks = cluster.run(os.getpid, world_size=6)
    assert ranks == [cluster.pids[slot] for slot in (0, 2, 4, 1, 3, 5)]


def test_a_replica_that_fits_no_host_runs_with_a_warning(
    hosts: EngineCluster, tmp_path: Path
) -> None:
    config = digits_config((1, 3), (1, 3), num_iterations=1)
    config.strategy = StrategyConfig(name="fedavg", replicas=1)
    with pytest.warns(UserWarning, match="Replica 0 of 3 ranks is spread over the hosts left, ri"):
        run = train(hosts, config, directory=tmp_path)
    assert len(run.result().steps) == 3
