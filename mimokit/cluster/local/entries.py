"""The local clusters of this user: an entry for each, in a folder that others cannot read.

The engine server of a cluster writes the entry and removes it when it ends. An entry whose server
was killed is removed, with the folder of its cluster, by whoever lists them next.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from mimokit.cluster.errors import ClusterError
from mimokit.cluster.process import SAME_START
from mimokit.cluster.state import state_folders

FOLDER = "clusters"
PREFIX = "mimokit-cluster-"
"""Of the folder of a cluster."""
NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class ClusterEntry:
    """A local cluster, as its engine server was started.

    Attributes:
        directory: the folder of its sockets, logs and recorded runs.
        launch: "fork" or "plain".
        stays: whether it outlives the process that has started it.
        timeout: of collectives, in seconds.
        pid: of the engine server.
        began: when that process began, in seconds since the epoch.
        host: where it runs; homes may be shared by hosts.
    """

    name: str
    directory: str
    launch: str
    stays: bool
    engines: int
    timeout: float
    preload: tuple[str, ...]
    pid: int = 0
    began: float = 0.0
    host: str = ""

    @property
    def runs(self) -> Path:
        """The folder in which its ranks record what they send, if it stays."""
        return Path(self.directory) / "runs"

    @property
    def is_here(self) -> bool:
        """Whether it runs on this host."""
        return self.host == socket.gethostname()

    @property
    def lives(self) -> bool:
        """Whether the engine server is there; of another host that is not known, and so yes."""
        if not self.is_here:
            return True
        try:
            process = psutil.Process(self.pid)
            there = process.status() != psutil.STATUS_ZOMBIE
            return bool(there and abs(process.create_time() - self.began) < SAME_START)
        except psutil.Error:
            return False


def checked_name(name: str) -> str:
    """Return the name of a cluster; raises ClusterError if no file can have it."""
    if not isinstance(name, str) or not NAMES.fullmatch(name):
        raise ClusterError(
            f"a cluster cannot be called {name!r}: a name has at most 64 letters, digits, dots, "
            "hyphens and underscores, and begins with a letter or a digit"
        )
    return name


def write_entry(entry: ClusterEntry) -> None:
    """Write the entry of a cluster.

    Raises:
        FileExistsError: another one has that name.
        OSError: it cannot be written anywhere.
    """
    text = json.dumps(asdict(entry)).encode()
    failed = OSError("there is no folder for it")
    for folder in _folders():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            descriptor = os.open(_file(folder, entry.name), flags, 0o600)
        except FileExistsError:
            raise
        except OSError as error:
            failed = error
            continue
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        return
    raise failed


def remove_entry(entry: ClusterEntry) -> None:
    """Remove the entry of a cluster, unless another one has the name by now."""
    for folder in _folders():
        written = _read(_file(folder, entry.name))
        if written is not None and written.directory == entry.directory:
            _file(folder, entry.name).unlink(missing_ok=True)


def entries() -> list[ClusterEntry]:
    """Return the clusters that are there, by name; clears away what is left of killed ones."""
    there: dict[str, ClusterEntry] = {}
    for entry in _written():
        if entry.lives:
            there.setdefault(entry.name, entry)
        else:
            clear(entry)
    return [there[name] for name in sorted(there)]


def entry_of(name: str) -> ClusterEntry:
    """Return the entry of a cluster; raises ClusterError if there is none of this name."""
    there = {entry.name: entry for entry in entries()}
    if checked_name(name) in there:
        return there[name]
    known = f"there are {', '.join(there)}" if there else "there is none"
    raise ClusterError(
        f"no cluster is called {name!r} ({known}): start one with "
        f"EngineCluster(stay=True, name={name!r})"
    )


def clear(entry: ClusterEntry) -> None:
    """Remove what a cluster whose server is gone has left on the disk."""
    remove_entry(entry)
    directory = Path(entry.directory)
    with contextlib.suppress(OSError):
        ours = directory.lstat().st_uid == os.geteuid() and not directory.is_symlink()
        if ours and directory.name.startswith(PREFIX):
            shutil.rmtree(directory, ignore_errors=True)


def _folders() -> list[Path]:
    return [folder / FOLDER for folder in state_folders()]


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _written() -> Iterator[ClusterEntry]:
    for folder in _folders():
        with contextlib.suppress(OSError):
            for file in sorted(folder.glob("*.json")):
                if (entry := _read(file)) is not None:
                    yield entry


def _read(file: Path) -> ClusterEntry | None:
    """Return the entry in a file, None if it is none of ours or is just being written."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as text:
            if os.fstat(text.fileno()).st_uid != os.geteuid():
                return None
            content = json.loads(text.read())
            return ClusterEntry(**content | {"preload": tuple(content["preload"])})
    except (OSError, ValueError, TypeError, LookupError):
        return None


def started_now(entry: ClusterEntry) -> ClusterEntry:
    """Return an entry with what is known of this process, its engine server."""
    began = psutil.Process().create_time()
    return replace(entry, pid=os.getpid(), began=began, host=socket.gethostname())
