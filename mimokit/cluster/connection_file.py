"""The file by which a client finds a running controller, and what keeps others away from that.

The file holds the key that signs every message: who reads it runs code as its owner. Messages are
signed but not encrypted unless the controller has CURVE on, and without CURVE anyone who reaches
its ports can disturb it.
"""

import ipaddress
import json
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ipyparallel
from IPython.core.profiledir import ProfileDir
from IPython.paths import get_ipython_dir

from mimokit.cluster.errors import ClusterError
from mimokit.cluster.sockets import TRANSPORT

UNENCRYPTED = "MIMOKIT_UNENCRYPTED"
"""Set to 1: a controller without encryption may be used over a network."""
CURVE_KEY = "IPP_CURVE_SERVERKEY"
"""Where ipyparallel's client looks for a controller's CURVE key that the file does not have."""
CLIENT, ENGINE = "client.json", "engine.json"


def connection_of(
    profile: str | None, cluster_file: str | Path | None, patience: float
) -> dict[str, Any]:
    """Return what a client needs to connect to a running cluster.

    Args:
        patience: seconds to wait for the connection file.

    Raises:
        ClusterError: others can read the file, or the controller is not encrypted and listens on
            other interfaces than loopback.
        OSError: there is no such file.
        ValueError: it is no such file.
    """
    if cluster_file is None:
        folder = ProfileDir.find_profile_dir_by_name(get_ipython_dir(), profile).security_dir
        return _read(Path(folder) / f"ipcontroller-{CLIENT}", patience)
    path = Path(cluster_file)
    refuse_readable(path)
    if "registration" in _mapping(path):
        return _read(path, patience)
    cluster = ipyparallel.Cluster.from_file(str(path))
    if cluster.controller is None:
        raise ValueError("its controller does not run")
    return _read(Path(cluster.controller.connection_files["client"]), patience)


def refuse_readable(file: Path) -> None:
    """Raise ClusterError if anybody but this user can read or replace a file.

    Raises:
        OSError: there is no such file.
        ValueError: it is a pipe, a device or a folder.
    """
    facts = file.stat()
    if not stat.S_ISREG(facts.st_mode):  # a pipe would be waited for
        raise ValueError("it is not a regular file")
    if facts.st_uid not in (os.geteuid(), 0):
        raise ClusterError(f"{file} belongs to another user: use a cluster that you have started")
    folders = [folder.stat().st_mode for folder in file.resolve().parents]
    for read, enter in ((stat.S_IRGRP, stat.S_IXGRP), (stat.S_IROTH, stat.S_IXOTH)):
        if facts.st_mode & read and all(mode & enter for mode in folders):
            raise ClusterError(
                f"{file} leads to the key of a cluster and others can read it, who can then run "
                f"code as you: start the cluster again after `chmod 700 {file.parent}`"
            )


def refuse_unencrypted(connection: Mapping[str, Any], file: Path) -> None:
    """Raise ClusterError if messages would cross a network in clear text."""
    encrypted = connection.get("curve_serverkey") or os.environ.get(CURVE_KEY)
    if encrypted or os.environ.get(UNENCRYPTED) == "1":
        return
    interface = str(connection["interface"])
    if not _stays_here(interface):
        raise ClusterError(
            f"the controller of {file} listens on {interface} without encryption: start it with "
            f"--IPController.enable_curve=True (IPP_ENABLE_CURVE=1 for ipcluster), or set "
            f"{UNENCRYPTED}=1 if nobody else reaches that network"
        )


def _read(file: Path, patience: float) -> dict[str, Any]:
    deadline = time.monotonic() + patience
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    refuse_readable(file)
    connection = _mapping(file)
    refuse_unencrypted(connection, file)
    of_engines = file.with_name(file.name.removesuffix(CLIENT) + ENGINE)
    if file.name.endswith(CLIENT) and of_engines.exists():
        # Engines may be told another interface than clients.
        refuse_unencrypted(_mapping(of_engines), of_engines)
    return connection


def _mapping(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except RecursionError:
        content = None
    if not isinstance(content, dict):
        raise ValueError("it is not a connection file")
    return content


def _stays_here(interface: str) -> bool:
    if interface.startswith(TRANSPORT):
        return True
    address = interface.partition("://")[2]
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:  # "*", or the name of a host
        return False
