"""A network that only the processes of one cluster reach.

Every process of a machine reaches its loopback ports. gloo and the store of a world listen on such
ports, and the first to connect takes the place of a rank, or keeps all descriptors busy. So the
engine server and all that it starts have a network namespace where Linux allows that to a user.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

HOST_NETWORK = "MIMOKIT_HOST_NETWORK"
"""Set to 1, leaves engines the network of the host, for code of the user that needs it."""
PRIVATE_NETWORK = "MIMOKIT_PRIVATE_NETWORK"
"""What the engine server tells its engines: the network namespace that is theirs alone."""
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
"""CLONE_NEWUSER and CLONE_NEWNET of Linux."""
_SET_FLAGS, _IS_UP = 0x8914, 0x1
"""SIOCSIFFLAGS and IFF_UP of Linux."""
_CAPABILITIES_VERSION = 0x20080522
_NAMESPACE = Path("/proc/self/ns/net")


def enter_private_network() -> bool:
    """Move this process, which must have one thread, into a new network with a loopback alone.

    Returns:
        Whether it is there. If not, it is where it was.
    """
    if sys.platform != "linux" or os.environ.get(HOST_NETWORK) == "1" or not _is_allowed():
        return False
    _enter()
    os.environ[PRIVATE_NETWORK] = os.readlink(_NAMESPACE)
    return True


def in_private_network() -> bool:
    """Whether an engine server has given this process a network that others do not reach."""
    try:
        return os.environ.get(PRIVATE_NETWORK) == os.readlink(_NAMESPACE)
    except OSError:
        return False


def _is_allowed() -> bool:
    """Try it in a child: some systems allow to enter, and then not to switch on the loopback."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _enter()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def _enter() -> None:
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    # An administrator would lose the right to files of others in a namespace of users.
    if libc.unshare(_NEW_NETWORK | (_NEW_USER if user else 0)):
        raise OSError(ctypes.get_errno(), "a network namespace cannot be made")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _IS_UP))
    if user:
        # The namespace gives all rights over files of this user, also those that are read-only.
        header = struct.pack("Ii", _CAPABILITIES_VERSION, 0)
        if libc.capset(header, bytes(24)):
            raise OSError(ctypes.get_errno(), "rights cannot be given up")
