"""Ranks show each other the key of their world, and say who else is connected to them."""

import os
import resource
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from mimokit.cluster.worker import handshake, interference
from mimokit.cluster.worker.handshake import ForeignRankError, shake_hands
from mimokit.cluster.worker.interference import Connection, connections, strangers
from mimokit.cluster.worker.task import explain_error
from tests.rows import rows

KEY = b"of this world"
OWN, OTHER = os.geteuid(), 54321


def shaken(keys: Sequence[bytes]) -> list[str]:
    """Let ranks in threads shake hands; return what each says, "" if nothing."""
    store = dist.HashStore()

    def rank(number: int) -> str:
        backend = dist.ProcessGroupGloo(store, number, len(keys), timedelta(seconds=60))
        group = SimpleNamespace(
            rank=lambda: number, size=lambda: len(keys), _get_backend=lambda device: backend
        )
        try:
            shake_hands(group, keys[number])
        except ForeignRankError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(keys)) as threads:
        return list(threads.map(rank, range(len(keys))))


def test_ranks_of_one_world_agree() -> None:
    assert shaken([KEY] * 3) == [""] * 3


def test_a_rank_without_the_key_is_found_by_every_other() -> None:
    said = shaken([KEY, KEY, b"of another world"])
    assert all("in the place of rank 2 of a group does not have the key" in one for one in said[:2])
    assert "in the place of rank 0" in said[2]


def test_an_answer_of_another_pair_or_of_another_time_is_none() -> None:
    """So nothing that was heard once, or comes from another rank, can be said again."""
    right = handshake._answer(KEY, 1, 0, b"question")
    others = {
        handshake._answer(KEY, 0, 1, b"question"),
        handshake._answer(KEY, 2, 0, b"question"),
        handshake._answer(KEY, 1, 0, b"another question"),
        handshake._answer(b"another key", 1, 0, b"question"),
    }
    assert right not in others
    assert len(others) == 4


def row(here: str, there: str, user: int, state: str = "01") -> Connection:
    return Connection(f"0100007F:{here}", f"0100007F:{there}", state, user)


@rows(
    "rows, named",
    ([row("AA", "1111", OWN), row("1111", "AA", OWN)], None),
    ([row("AA", "1111", 0), row("1111", "AA", OTHER)] * 2, f"{OTHER} (2 connections)"),
    ([row("AB", "1111", OTHER), row("1111", "AB", OTHER)], None),
    ([row("1111", "AA", OTHER)], None),
    ([row("AA", "1111", 0), row("1111", "AA", OTHER, "07")], None),
)
def test_users_that_are_connected_to_our_ports_are_named(
    rows: list[Connection], named: str | None
) -> None:
    listening = Connection("0100007F:AA", "00000000:0000", "0A", OWN)
    said = strangers([listening, *rows])
    assert (said is None) == (named is None)
    assert named is None or named in (said or "")


def test_connections_of_this_machine_are_read_as_the_kernel_has_them() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        port = f":{client.getsockname()[1]:04X}"
        (found,) = [one for one in connections() if one.here.endswith(port)]
        assert found.user == OWN
        assert found.there.endswith(f":{server.getsockname()[1]:04X}")


def test_a_broken_connection_says_who_interferes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is then no echo of another rank's failure."""
    error = RuntimeError("Connection closed by peer")
    assert explain_error(error, aborted=False).communication
    rows = [row("AA", "1111", 0), row("1111", "AA", OTHER), Connection("x:AA", "x:0", "0A", OWN)]
    monkeypatch.setattr(interference, "connections", lambda: rows)
    failure = explain_error(error, aborted=False)
    assert not failure.communication
    assert f"another user of this machine is connected to ranks: {OTHER}" in failure.message
    assert explain_error(error, aborted=True).message == "Connection closed by peer"


def test_a_process_that_can_open_nothing_more_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (len(os.listdir("/proc/self/fd")), 0))
    failure = explain_error(RuntimeError("gloo: accept failed"), aborted=False)
    assert "descriptors that this process may have are open (ulimit -n)" in failure.message


def test_a_group_of_one_rank_asks_nobody() -> None:
    backend = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=60))
    shake_hands(
        SimpleNamespace(rank=lambda: 0, size=lambda: 1, _get_backend=lambda device: backend), KEY
    )
    assert torch.ones(1)
