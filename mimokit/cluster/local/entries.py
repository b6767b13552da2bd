"""The local clusters of this user: each is a folder with an entry, which others cannot enter.

The engine server writes the entry and removes the folder when it ends. A folder whose server was
killed is removed by whoever lists clusters next.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from mimokit.cluster.errors import ClusterError
from mimokit.cluster.process import SAME_START

PREFIX = "mimokit-cluster-"
"""Of the folder of a cluster; its name follows."""
ENTRY = "cluster.json"
MOST_OF_ENTRY = 2**16
"""Bytes."""
CLIENT_FILE = "ipcontroller-client.json"
ENGINE_FILE = "ipcontroller-engine.json"
NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LONGEST_PLACE = 60
"""Characters of the path of the directory for temporary files; that of a socket may have 103."""


def profile_directory(directory: Path) -> Path:
    """Where ipyparallel keeps its files while the cluster lives."""
    return directory / "profile"


def connection_file(directory: Path, name: str = CLIENT_FILE) -> Path:
    """The file with the addresses and the key of the controller."""
    return profile_directory(directory) / "security" / name


@dataclass(frozen=True)
class ClusterEntry:
    """A local cluster, as its engine server was started.

    Attributes:
        stays: whether it outlives the process that has started it.
        timeout: of collectives, in seconds.
        began: when that process began, in seconds since the epoch.
    """

    directory: str
    launch: str
    stays: bool
    engines: int
    timeout: float
    preload: tuple[str, ...]
    pid: int = 0
    began: float = 0.0

    @property
    def name(self) -> str:
        """What the user calls it."""
        return Path(self.directory).name.removeprefix(PREFIX)

    @property
    def runs(self) -> Path:
        """The folder in which its ranks record what they send, if it stays."""
        return Path(self.directory) / "runs"

    @property
    def lives(self) -> bool:
        """Whether the engine server is there."""
        try:
            process = psutil.Process(self.pid)
            there = process.status() != psutil.STATUS_ZOMBIE
            return bool(there and abs(process.create_time() - self.began) < SAME_START)
        except (psutil.Error, ValueError, OverflowError):  # the last two: no process has such an id
            return False

    def of_this_process(self) -> ClusterEntry:
        """Return it with what is known of its engine server, which this process is."""
        return replace(self, pid=os.getpid(), began=psutil.Process().create_time())

    def write(self) -> None:
        """Write it into its folder; raises OSError if that cannot be."""
        descriptor = os.open(
            Path(self.directory) / ENTRY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
        )
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(self), file)

    @classmethod
    def of_json(cls, text: str) -> ClusterEntry:
        """Return what `asdict` and JSON have made plain; raises ValueError if not an entry."""
        try:
            content = json.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        if not isinstance(content, dict) or {*content} != {*_KINDS}:
            raise ValueError("it has other fields")
        if not all(type(content[name]) in kinds for name, kinds in _KINDS.items()):
            raise ValueError("a field has another type")
        if not all(isinstance(name, str) for name in content["preload"]):
            raise ValueError("preload names no modules")
        return cls(**content | {"preload": tuple(content["preload"])})


_KINDS: dict[str, tuple[type, ...]] = {
    "directory": (str,), "launch": (str,), "stays": (bool,), "engines": (int,),
    "timeout": (int, float), "preload": (list,), "pid": (int,), "began": (int, float),
}  # fmt: skip
"""Field of an entry as JSON -> its types."""


def new_folder(name: str | None) -> Path:
    """Return a new folder for a cluster; of no name one that no other has.

    Raises:
        ClusterError: no folder can have this name, or there is one.
    """
    if name is not None and checked_name(name) in (entry.name for entry in entries()):
        raise ClusterError(
            f"a cluster is called {name!r} already: EngineCluster.connect({name!r}) uses it, "
            f"`mimokit clusters --end {name}` ends it"
        )
    folder = _places()[0] / f"{PREFIX}{name or secrets.token_hex(4)}"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise ClusterError(f"{folder} is there and no cluster: choose another name") from None
    profile_directory(folder).mkdir()
    return folder


def checked_name(name: str) -> str:
    """Return the name of a cluster; raises ClusterError if no file can have it."""
    if not isinstance(name, str) or not NAMES.fullmatch(name):
        raise ClusterError(
            f"a cluster cannot be called {name!r}: a name has at most 64 letters, digits, dots, "
            "hyphens and underscores, and begins with a letter or a digit"
        )
    return name


def entries() -> list[ClusterEntry]:
    """Return the clusters that are there, by name; clears away what is left of killed ones."""
    there: dict[str, ClusterEntry] = {}
    for folder in (folder for place in _places() for folder in place.glob(f"{PREFIX}*")):
        entry = _read(folder)
        if entry is not None and entry.lives:
            there.setdefault(entry.name, entry)
        elif entry is not None:
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
    if _is_ours(Path(entry.directory)):
        shutil.rmtree(entry.directory, ignore_errors=True)


def _places() -> list[Path]:
    """Where folders are made, and where processes with another TMPDIR have made theirs."""
    place = tempfile.gettempdir()
    return [Path(each) for each in dict.fromkeys((place, "/tmp")) if len(each) <= LONGEST_PLACE]


def _is_ours(folder: Path) -> bool:
    try:
        facts = folder.lstat()
    except OSError:
        return False
    ours = facts.st_uid == os.geteuid() and stat.S_IMODE(facts.st_mode) & 0o077 == 0
    return ours and stat.S_ISDIR(facts.st_mode) and folder.name.startswith(PREFIX)


def _read(folder: Path) -> ClusterEntry | None:
    if not _is_ours(folder):
        return None
    try:
        if not (folder / ENTRY).is_file():
            return None
        with (folder / ENTRY).open() as file:
            entry = ClusterEntry.of_json(file.read(MOST_OF_ENTRY))
    except (OSError, ValueError):
        return None
    return entry if entry.directory == str(folder) else None
