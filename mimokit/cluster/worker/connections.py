"""Break the connections of the world, so that whoever waits in a collective comes back at once.

gloo offers no abort: destroying a process group frees its sockets only when the last Python
reference to any of its subgroups is gone, and a model holds many. Shutting the sockets down needs
no consent of another rank: both ends of every connection fail within milliseconds.
"""

import contextlib
import ctypes
import os
import platform
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


class _EpollEvent(ctypes.Structure):
    """The kernel's `epoll_event`, which only x86-64 packs."""

    _pack_ = 1 if platform.machine() == "x86_64" else 8
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


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
    listening = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN} - kept_ports
    for connection in connections:
        if connection.raddr and (
            connection.laddr.port in listening or connection.raddr.port == store_port
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
    """Stop dead connections that no rank closes from waking threads; return their number.

    A gloo thread that was interrupted while it connected never closes its socket, whichever end
    shut it down, and polls it as fast as a core allows, for as long as the process lives. To be
    called when no rank waits for the world any more. They stay registered, since gloo ends the
    process where it cannot take back a registration when it lets go of a group later.
    """
    if not (dead := set(_dead_connections())):
        return 0
    time.sleep(GRACE_SECONDS)
    still = dead & set(_dead_connections())
    for poller, target, data, _ in still:
        _report_once(poller, target, data)
    return len(still)


def _report_once(poller: int, target: int, data: int) -> None:
    """Have a descriptor reported once more, with the data it was registered with, then no more."""
    modify = 3  # EPOLL_CTL_MOD, which Python has no name for
    event = _EpollEvent(select.EPOLLONESHOT, data)
    # The other thread may have closed it meanwhile: then there is nothing left to do.
    ctypes.CDLL(None).epoll_ctl(poller, modify, target, ctypes.byref(event))


def _dead_connections() -> Iterator[tuple[int, int, int, int]]:
    for poller in map(int, os.listdir("/proc/self/fd")):
        for target, events, data in _polled_by(poller):
            with contextlib.suppress(OSError):
                silent = events & select.EPOLLONESHOT  # gloo registers nothing that way
                if not silent and _tcp_state(target) not in (None, ESTABLISHED, LISTEN):
                    yield poller, target, data, os.fstat(target).st_ino


def _polled_by(poller: int) -> list[tuple[int, int, int]]:
    with contextlib.suppress(OSError):
        if os.readlink(f"/proc/self/fd/{poller}") == "anon_inode:[eventpoll]":
            lines = Path(f"/proc/self/fdinfo/{poller}").read_text().splitlines()
            told = [line.split() for line in lines if line.startswith("tfd:")]
            return [(int(fields[1]), int(fields[3], 16), int(fields[5], 16)) for fields in told]
    return []


def _tcp_state(descriptor: int) -> int | None:
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
