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
import sys
from pathlib import Path

import psutil

_SHUT_DOWN: set[int] = set()
"""Inodes of the sockets that were shut down here since the last silence."""


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
            _SHUT_DOWN.add(os.fstat(duplicate.fileno()).st_ino)
            duplicate.shutdown(socket.SHUT_RDWR)


def silence_broken_connections() -> None:
    """Take sockets that were shut down, and that nobody closed, out of all polling.

    A gloo thread that was interrupted while it connected never closes its socket, and polls it as
    fast as a core allows, for as long as the process lives. To be called when nobody waits for
    the world any more.
    """
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}") == "anon_inode:[eventpoll]":
                _forget_shut_down(descriptor)
    _SHUT_DOWN.clear()


def _forget_shut_down(poller: int) -> None:
    lines = Path(f"/proc/self/fdinfo/{poller}").read_text().splitlines()
    targets = [int(line.split()[1]) for line in lines if line.startswith("tfd:")]
    duplicate = select.epoll.fromfd(os.dup(poller))
    with duplicate:
        for target in targets:
            with contextlib.suppress(OSError):
                if os.fstat(target).st_ino in _SHUT_DOWN:
                    duplicate.unregister(target)


def _abort_nccl() -> None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_initialized():
        return
    if "nccl" in str(torch.distributed.get_backend_config()):
        torch.distributed.distributed_c10d._abort_process_group()
