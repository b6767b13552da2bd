"""Dead connections leave polling, live ones stay."""

import contextlib
import select
import socket
from collections.abc import Iterator

import pytest

from mimokit.cluster.worker.connections import silence_broken_connections

Connection = tuple[socket.socket, socket.socket]


@pytest.fixture
def connections() -> Iterator[list[Connection]]:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        pairs = []
        for _ in range(2):
            near = stack.enter_context(socket.create_connection(listener.getsockname()))
            pairs.append((near, stack.enter_context(listener.accept()[0])))
        yield pairs


def _ready_again(poller: select.epoll) -> set[int]:
    """Return what a poller is woken for after it was woken once more at most."""
    poller.poll(0)
    return {descriptor for descriptor, _ in poller.poll(0)}


def test_a_connection_that_its_peer_shut_down_is_polled_no_longer(
    connections: list[Connection],
) -> None:
    (dead, peer), (alive, other) = connections
    with select.epoll() as poller:
        poller.register(dead, select.EPOLLIN)
        poller.register(alive, select.EPOLLIN)
        peer.shutdown(socket.SHUT_RDWR)
        assert poller.poll(1), "a dead connection wakes its poller over and over"
        assert silence_broken_connections() == 1
        assert _ready_again(poller) == set()
        other.send(b"still here")
        assert poller.poll(1)[0][0] == alive.fileno()
        assert silence_broken_connections() == 0
        poller.unregister(dead)  # gloo ends the process where this fails


def test_a_connection_that_was_shut_down_here_is_polled_no_longer(
    connections: list[Connection],
) -> None:
    dead, peer = connections[0]
    with select.epoll() as poller:
        poller.register(dead, select.EPOLLIN)
        dead.shutdown(socket.SHUT_RDWR)
        peer.close()
        assert poller.poll(1)
        assert silence_broken_connections() == 1
        assert poller.poll(0) in ([], [(dead.fileno(), select.EPOLLHUP)]), "with its own data"
        assert _ready_again(poller) == set()
        poller.unregister(dead)


def test_nothing_is_done_while_all_live(connections: list[Connection]) -> None:
    with select.epoll() as poller:
        poller.register(connections[0][0], select.EPOLLIN)
        assert silence_broken_connections() == 0
        connections[0][1].send(b"1")
        assert poller.poll(1)
