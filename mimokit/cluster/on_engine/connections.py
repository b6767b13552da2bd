"""Break the connections of the world, so that whoever waits in a collective comes back at once.

gloo offers no abort: destroying a process group frees its sockets only when the last Python
reference to any of its subgroups is gone, and a model holds many. Shutting the sockets down needs
nobody's consent: both ends of every connection fail within milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys

import psutil


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


def _abort_nccl() -> None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_initialized():
        return
    if "nccl" in str(torch.distributed.get_backend_config()):
        torch.distributed.distributed_c10d._abort_process_group()
