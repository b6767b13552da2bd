"""Who reaches the controller of a cluster."""

from __future__ import annotations

import os
import stat

import psutil

from mimokit.cluster import EngineCluster
from mimokit.cluster.local.commands import SOCKET
from mimokit.cluster.local.pool import LocalPool


def test_the_controller_listens_where_its_owner_alone_reaches_it(cluster: EngineCluster) -> None:
    """Bytes that another user's process sent to its ports made it deaf to `stop`."""
    pool = cluster._pool
    assert isinstance(pool, LocalPool)
    assert pool._controller is not None
    controller = psutil.Process(pool._controller)
    family = [controller, *controller.children(recursive=True), psutil.Process(pool._server.pid)]
    listening = [
        one.laddr
        for process in family
        for one in process.net_connections("inet")
        if one.status == psutil.CONN_LISTEN
    ]
    assert not listening
    assert len(list(pool.directory.glob(f"{SOCKET}-*"))) > 10
    assert stat.S_IMODE(os.stat(pool.directory).st_mode) == 0o700
