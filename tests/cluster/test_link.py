"""The client of a cluster goes on after bytes that are not a message."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ipyparallel
import pytest
import zmq
from jupyter_client.session import Session

from mimokit.cluster.link import connect
from mimokit.cluster.local.commands import (
    ENGINE_FILE,
    connection_file,
    controller_arguments,
    controller_can_be_found,
)

SENT = 20


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A controller without engines; the folder of its files."""
    directory = tmp_path_factory.mktemp("cluster")
    command = [sys.executable, "-m", "ipyparallel.controller", *controller_arguments(directory)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert _comes(lambda: controller_can_be_found(directory))
        yield directory
    finally:
        process.terminate()
        process.wait(30)


def _all_arrives(directory: Path, client: Any, seconds: float) -> bool:
    """Print as an engine, with bytes of a stranger in between; return whether all of it arrives."""
    engine = Session(
        key=client.session.key, packer=client.session.packer, unpacker=client.session.unpacker
    )
    parent = {"session": client.session.session, "msg_id": "task"}
    content = json.loads(connection_file(directory, ENGINE_FILE).read_text())

    def heard(count: int) -> bool:
        return len(client.metadata["task"]["stdout"] or "") >= count

    with zmq.Context() as context, context.socket(zmq.PUB) as socket:
        socket.connect(f"{content['interface']}:{content['iopub']}")

        def send() -> None:
            text = {"name": "stdout", "text": "."}
            engine.send(socket, "stream", content=text, parent=parent, ident=b"engine")

        def first() -> bool:
            send()  # what is published before the connection stands is lost
            return heard(1)

        assert _comes(first)
        time.sleep(0.2)
        before = len(client.metadata["task"]["stdout"])
        for _ in range(SENT):
            socket.send_multipart([b"iopub", b"not a message"])
            send()
        return _comes(lambda: heard(before + SENT), seconds)


def test_bytes_of_a_stranger_do_not_stop_what_engines_send(controller: Path) -> None:
    link = connect(connection_file(controller), 30, lambda: None)
    try:
        assert _all_arrives(controller, link.client, seconds=60)
    finally:
        link.close()


@pytest.mark.filterwarnings("ignore")
def test_they_stop_the_client_of_ipyparallel(controller: Path) -> None:
    """The check above can fail; if this one does, `mimokit.cluster.link.Client` can go."""
    client = ipyparallel.Client(str(connection_file(controller)), timeout=30)
    try:
        assert not _all_arrives(controller, client, seconds=3)
    finally:
        client.close(linger=0)


def _comes(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
