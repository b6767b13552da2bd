"""Break the connections of the world, so that whoever waits in a collective comes back at once.

gloo offers no abort: destroying a process group frees its sockets only when the last Python
reference to any of its subgroups is gone, and a model holds many. Shutting the sockets down needs
nobody's consent: both ends of every connection fail within milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

ESTABLISHED, LISTEN = 1, 10
"""States of a TCP connection, as the kernel numbers them."""

GRACE_SECONDS = 0.05
"""How long whoever owns a dead connection may take to notice and close it."""


def listening_ports() -> frozenset[int]:
    """The ports on which this process accepts TCP connections."""
    return frozenset(
        connection.laddr.port
        for connection in psutil.Process().net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    )


def break_connections(kept_ports: frozenset[int], store_port: int | None) -> None:
    """Shut down what came in on ports opened for the world, and the way to its store.

    Every gloo connection was accepted by one of its two ends, so all are broken once every rank
    has done this. `kept_ports` are the ports that were open before there was a world.
    """
    connections = psutil.Process().net_connections("tcp")
    own = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN} - kept_ports
    for connection in connections:
        if connection.raddr and (
            connection.laddr.port in own or connection.raddr.port == store_port
        ):
            _shut_down(connection.fd)
    _abort_nccl()


def _shut_down(descriptor: int) -> None:
    # The other thread may have closed it meanwhile: then there is nothing left to do.
    with contextlib.suppress(OSError):
        duplicate = socket.socket(fileno=os.dup(descriptor))
        with duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)


def silence_broken_connections() -> int:
    """Take connections that are dead, and that nobody closes, out of all polling; returns how many.

    A gloo thread that was interrupted while it connected never closes its socket, whichever end
    shut it down, and polls it as fast as a core allows, for as long as the process lives. To be
    called when nobody waits for the world any more.
    """
    if not (found := set(_dead_connections())):
        return 0
    time.sleep(GRACE_SECONDS)
    still = found & set(_dead_connections())
    for poller, target, _ in still:
        with contextlib.suppress(OSError), select.epoll.fromfd(os.dup(poller)) as duplicate:
            duplicate.unregister(target)
    return len(still)


def _dead_connections() -> Iterator[tuple[int, int, int]]:
    """Yield (poller, descriptor, inode) of connections that are polled but not alive."""
    for poller in map(int, os.listdir("/proc/self/fd")):
        for target in _polled_by(poller):
            with contextlib.suppress(OSError):
                if _tcp_state(target) not in (None, ESTABLISHED, LISTEN):
                    yield poller, target, os.fstat(target).st_ino


def _polled_by(poller: int) -> list[int]:
    with contextlib.suppress(OSError):
        if os.readlink(f"/proc/self/fd/{poller}") == "anon_inode:[eventpoll]":
            lines = Path(f"/proc/self/fdinfo/{poller}").read_text().splitlines()
            return [int(line.split()[1]) for line in lines if line.startswith("tfd:")]
    return []


def _tcp_state(descriptor: int) -> int | None:
    """Return the state of a TCP connection, None for anything else."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return None
    with socket.socket(fileno=os.dup(descriptor)) as duplicate:
        if duplicate.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        if duplicate.type != socket.SOCK_STREAM:
            return None
        return duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def _abort_nccl() -> None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_initialized():
        return
    if "nccl" in str(torch.distributed.get_backend_config()):
        torch.distributed.distributed_c10d._abort_process_group()
