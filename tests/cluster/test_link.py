"""Bytes that strangers send to the ports of a cluster change nothing."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator

import zmq

from mimokit.cluster import EngineCluster
from mimokit.cluster.local.commands import CLIENT_FILE, ENGINE_FILE, connection_file
from mimokit.cluster.local.pool import LocalPool

CONNECTIONS = 12


def _ports(cluster: EngineCluster) -> set[int]:
    """Return the ports of the controller."""
    pool = cluster._pool
    assert isinstance(pool, LocalPool)
    files = [connection_file(pool.directory, name) for name in (CLIENT_FILE, ENGINE_FILE)]
    values = [one for file in files for one in json.loads(file.read_text()).values()]
    return {one for value in values for one in _flat(value) if isinstance(one, int)}


def _flat(value: object) -> Iterator[object]:
    yield from value if isinstance(value, list) else [value]


def _send_bytes(port: int) -> None:
    """Send random bytes over plain connections, and frames that are not a message over zmq."""
    for _ in range(CONNECTIONS):
        with socket.create_connection(("127.0.0.1", port)) as plain:
            try:
                plain.sendall(os.urandom(4096))
            except ConnectionError:
                return
    with zmq.Context() as context:
        for kind in (zmq.PUB, zmq.DEALER):
            with context.socket(kind) as stranger:
                stranger.linger = 100
                stranger.connect(f"tcp://127.0.0.1:{port}")
                stranger.send_multipart([b"iopub", b"not a message"], zmq.DONTWAIT)


def _until_stopped() -> int:
    from mimokit.cluster import emit, should_stop

    count = 0
    while not should_stop():
        emit({"count": count})
        count += 1
        time.sleep(0.01)
    return count


def test_bytes_of_a_stranger_stop_neither_samples_nor_messages() -> None:
    with EngineCluster(2, launch="plain", progress=False) as cluster:
        run = cluster.submit(_until_stopped)
        ports = _ports(cluster)
        assert len(ports) > 10
        for port in ports:
            _send_bytes(port)
        before, deadline = len(run.samples), time.monotonic() + 60
        while len(run.samples) < before + 20 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(run.samples) >= before + 20
        run.stop()
        assert all(run.result(60))
