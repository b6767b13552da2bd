"""Who reaches the controller of a cluster."""

from __future__ import annotations

import os
import stat

import psutil

from mimokit.cluster import EngineCluster
from mimokit.cluster.local.callers import SOCKET_FILE
from mimokit.cluster.local.commands import SOCKET, connection_file
from mimokit.cluster.local.pool import LocalPool
from tests.cluster.functions import describe_rank


def test_the_controller_listens_where_its_owner_alone_reaches_it(cluster: EngineCluster) -> None:
    """Bytes that another user's process sent to its ports made it deaf to `stop`."""
    pool = cluster._pool
    assert isinstance(pool, LocalPool)
    assert pool._controller is not None
    controller = psutil.Process(pool._controller)
    family = [controller, *controller.children(recursive=True), psutil.Process(pool._server.pid)]
    assert not listening_of(family)
    assert len(list(pool.directory.glob(f"{SOCKET}-*"))) > 10
    modes = {pool.directory: 0o700, pool.directory / SOCKET_FILE: 0o600}
    for path, mode in {**modes, connection_file(pool.directory): 0o600}.items():
        assert stat.S_IMODE(os.stat(path).st_mode) == mode


def test_a_world_of_one_host_listens_on_loopback_alone(cluster: EngineCluster) -> None:
    """Its store, and gloo for the connections between ranks."""
    cluster.run(describe_rank)
    addresses = listening_of([psutil.Process(pid) for pid in cluster.pids])
    assert set(addresses) == {"127.0.0.1"}
    assert len(addresses) > len(cluster)


def listening_of(processes: list[psutil.Process]) -> list[str]:
    return [
        one.laddr.ip
        for process in processes
        for one in process.net_connections("inet")
        if one.status == psutil.CONN_LISTEN
    ]
