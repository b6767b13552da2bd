"""The command lines of the controller and of an engine, forked or executed alike."""

import json
from pathlib import Path
from typing import Any

from mimokit.cluster.local.entries import ENGINE_FILE, connection_file, profile_directory

SOCKET = "socket"


def engine_connection(directory: Path) -> dict[str, Any] | None:
    """Return what the controller has written for engines, None before it has written all of it.

    An engine that finds the file waits for nothing more, and ends if it is still empty.
    """
    try:
        content: dict[str, Any] = json.loads(connection_file(directory, ENGINE_FILE).read_text())
    except (OSError, ValueError):
        return None
    return content


def controller_arguments(directory: Path) -> list[str]:
    """A controller that stores no results and notices new engines quickly.

    An engine is registered at the second heartbeat that it answers, so the default of 3 s a beat
    is most of a cluster's start; it may miss the same 30 s of beats as by default.
    """
    return [
        f"--profile-dir={profile_directory(directory)}",
        "--log-level=ERROR",
        "--IPController.use_threads=True",
        "--IPController.db_class=ipyparallel.controller.dictdb.NoDB",
        "--HeartMonitor.period=250",
        "--HeartMonitor.max_heartmonitor_misses=120",
    ]


def on_sockets(directory: Path) -> list[str]:
    """Have the controller listen on socket files in the directory, which is its owner's alone.

    Every process of the machine reaches a port, and bytes that are no message have made the
    controller deaf.
    """
    return ["--IPController.transport=ipc", f"--IPController.ip={directory / SOCKET}"]


def engine_arguments(directory: Path, engine_id: int) -> list[str]:
    """An engine with the id we chose, and without a nanny: the server watches it."""
    return [
        f"--profile-dir={profile_directory(directory)}",
        f"--file={connection_file(directory, ENGINE_FILE)}",
        "--log-level=ERROR",
        f"--IPEngine.id={engine_id}",
        "--IPEngine.enable_nanny=False",
        "--IPEngine.wait_for_url_file=60",
        "--IPEngine.timeout=60",
        "--IPEngine.max_heartbeat_misses=120",
    ]
