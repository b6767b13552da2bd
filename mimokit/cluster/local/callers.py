"""How clients speak to an engine server: JSON lines over a socket file in the cluster's folder.

Only the owner of the folder reaches the file, and the kernel says which user calls.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SOCKET_FILE = "server"
_CREDENTIALS = struct.Struct("3i")
_CHUNK = 65536


def listen_in(directory: Path) -> socket.socket:
    """Return a socket that listens in the folder of a cluster; its owner alone may connect."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(directory / SOCKET_FILE))
    os.chmod(directory / SOCKET_FILE, 0o600)
    listener.listen()
    return listener


def call(directory: Path) -> Caller:
    """Return a connection to the engine server of a cluster; raises OSError if there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(directory / SOCKET_FILE))
    except BaseException:
        connection.close()
        raise
    return Caller(connection)


class Caller:
    """One end of a connection between a client and an engine server."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""
        self.pid, self._user = _peer(connection)

    @property
    def is_owner(self) -> bool:
        """Whether the process at the other end is of this user (or of the administrator)."""
        return self._user in (os.geteuid(), 0)

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self._connection.fileno()

    def be_patient(self, seconds: float) -> None:
        """Wait for a message no longer than so many seconds; None then, as at the end."""
        self._connection.settimeout(seconds)

    def say(self, message: Mapping[str, Any]) -> None:
        """Send a message; raises OSError if nobody is there any more."""
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """Wait for messages and return them; None at the end of the connection.

        An end without a newline is no message.
        """
        try:
            chunk = self._connection.recv(_CHUNK)
        except OSError:
            chunk = b""
        if not chunk:
            return None
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """End the connection, also where another thread waits for messages."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def _peer(connection: socket.socket) -> tuple[int, int]:
    if not hasattr(socket, "SO_PEERCRED"):
        return 0, os.geteuid()
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(told)
    return pid, user
