"""Why a rank reaches no other process: other users of this machine, or its own network."""

import contextlib
import errno
import os
import pwd
import resource
import socket
import stat
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mimokit.cluster.local.private_network import HOST_NETWORK, in_private_network
from mimokit.units import counted

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_CLOSED, _LISTENS = "07", "0A"
NEARLY_ALL = 0.95
"""Share of the descriptors that are open when there are too many."""


class Connection(NamedTuple):
    """A row of the kernel's table of TCP connections; addresses as it writes them."""

    here: str
    there: str
    state: str
    user: int
    inode: int = 0
    """Of the socket; 0 of an end that no process has."""


def interference() -> str | None:
    """Return who is connected to ports of this user that is another, and lack of descriptors.

    None if there is neither, or where the system does not say.
    """
    signs = [sign for sign in (strangers(connections()), _descriptors()) if sign]
    return " and ".join(signs) or None


def without_network(error: BaseException) -> str | None:
    """Return the remedy if an exception comes of a network that has a loopback alone."""
    if not in_private_network():
        return None
    while not _names_no_network(error):
        inner = error.__cause__ or error.__context__
        if inner is None:
            return None
        error = inner
    return (
        "engines have a network of their cluster alone, which other users do not reach: start "
        f"the cluster with {HOST_NETWORK}=1 in the environment for code that needs the host's"
    )


def _names_no_network(error: BaseException) -> bool:
    return isinstance(error, socket.gaierror) or (
        isinstance(error, OSError) and error.errno in (errno.ENETUNREACH, errno.ECONNREFUSED)
    )


def connections() -> list[Connection]:
    """Return the TCP connections of this machine, or of this network; none where not known."""
    rows = []
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, here, there, state, _, _, _, user, _, inode, *_ = line.split()
            rows.append(Connection(here, there, state, int(user), int(inode)))
    return rows


def strangers(rows: Iterable[Connection]) -> str | None:
    """Name the other users whose connections end at ports on which this user listens."""
    rows = [row for row in rows if row.state != _CLOSED]
    own, ends = os.geteuid(), {(row.here, row.there) for row in rows}
    ports = {_port(row.here) for row in rows if row.state == _LISTENS and row.user == own}
    return _named(
        row.user for row in rows if _port(row.there) in ports and (row.there, row.here) in ends
    )


def strangers_here() -> str | None:
    """Name the other users who have connected to this very process; None if there are none."""
    rows, sockets = connections(), _sockets()
    own = [row for row in rows if row.inode in sockets]
    ports = {_port(row.here) for row in own if row.state == _LISTENS}
    ends = {(row.there, row.here) for row in own if _port(row.here) in ports}
    return _named(row.user for row in rows if (row.here, row.there) in ends)


def _sockets() -> set[int]:
    sockets = set[int]()
    for descriptor in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):  # closed meanwhile
            facts = descriptor.stat()
            if stat.S_ISSOCK(facts.st_mode):
                sockets.add(facts.st_ino)
    return sockets


def _named(owners: Iterable[int]) -> str | None:
    # The kernel says 0 of an end that no process has accepted yet, or has any more.
    users = Counter(user for user in owners if user not in (os.geteuid(), 0))
    if not users:
        return None
    who = [f"{_name(user)} ({counted(number, 'connection')})" for user, number in users.items()]
    return f"another user of this machine is connected to ranks: {', '.join(who)}"


def _port(address: str) -> str:
    return address.rsplit(":", 1)[1]


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _descriptors() -> str | None:
    if sys.platform != "linux":
        return None
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        there = len(os.listdir("/proc/self/fd"))
    except OSError:  # not even one for the folder
        there = most
    if most == resource.RLIM_INFINITY or there < NEARLY_ALL * most:
        return None
    return f"{there} of the {most} descriptors that this process may have are open (ulimit -n)"
