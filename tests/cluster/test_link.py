"""Who reaches the controller of a cluster."""

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from ipyparallel.serialize import pack_apply_message, serialize_object
from jupyter_client.session import Session

from mimokit.cluster import EngineCluster
from mimokit.cluster.local.callers import SOCKET_FILE
from mimokit.cluster.local.commands import SOCKET
from mimokit.cluster.local.entries import CLIENT_FILE, ENGINE_FILE, connection_file
from mimokit.cluster.local.pool import LocalPool
from tests.cluster.functions import describe_rank

PATIENCE = 120.0


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
    ranks = cluster.run(listening_here, world_size=len(cluster))
    addresses = [address for rank in ranks for address in rank]
    assert set(addresses) == {"127.0.0.1"}
    assert len(addresses) > len(cluster)


class LeavesAFolder:
    """Leaves a folder where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self._folder,)


@pytest.mark.parametrize("socket", ["mux", "iopub"])
def test_nothing_is_unpickled_of_a_message_with_another_key(
    cluster: EngineCluster, tmp_path: Path, socket: str
) -> None:
    """By engines, or by the client; what comes after it with the right key is heard."""
    cluster.run(describe_rank)
    pool = cluster._pool
    assert isinstance(pool, LocalPool)
    file = ENGINE_FILE if socket == "iopub" else CLIENT_FILE
    connection = json.loads(connection_file(pool.directory, file).read_text())
    sessions = [Session(key=key) for key in (b"another", connection["key"].encode())]
    heard, deadline = tmp_path / "heard", time.monotonic() + PATIENCE
    kind = zmq.PUB if socket == "iopub" else zmq.DEALER
    with zmq.Context() as context, context.socket(kind) as door:
        door.linger = 0
        door.connect(f"{connection['interface']}-{connection[socket]}")
        while not heard.exists():  # a subscription takes a moment
            assert time.monotonic() < deadline
            for session, left in zip(sessions, (tmp_path / "unpickled", heard), strict=True):
                SENDERS[socket](session, door, cluster, LeavesAFolder(left))
            time.sleep(0.2)
    assert [path.name for path in tmp_path.iterdir()] == ["heard"]
    assert len(cluster.run(describe_rank, world_size=len(cluster))) == len(cluster)


def _apply(session: Session, door: zmq.Socket[bytes], cluster: Any, content: object) -> None:
    """Have an engine call something; it is named as its client names it."""
    client = cluster.client
    name = client._engines[cluster.engines[0].engine_id].encode()
    buffers = pack_apply_message(content, (), {})
    session.send(door, "apply_request", content={}, buffers=buffers, ident=name)


def _publish(session: Session, door: zmq.Socket[bytes], cluster: Any, content: object) -> None:
    parent = {"session": cluster.client.session.session, "msg_id": "none"}
    buffers = serialize_object({"samples": content})
    session.send(door, "data_message", content={}, parent=parent, buffers=buffers, ident=b"datapub")


SENDERS = {"mux": _apply, "iopub": _publish}


def listening_here() -> list[str]:
    return listening_of([psutil.Process()])


def listening_of(processes: list[psutil.Process]) -> list[str]:
    return [
        one.laddr.ip
        for process in processes
        for one in process.net_connections("inet")
        if one.status == psutil.CONN_LISTEN
    ]
