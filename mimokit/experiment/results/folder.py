"""The folder of a run: named, probed, emptied of an earlier run, and locked while a run writes it.

No path leads out of the folder: a symbolic link in it is moved or replaced, never followed. The
folder itself may be a link, since the user names it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from mimokit.config import ConfigError, Problem
from mimokit.config.text_file import read_json
from mimokit.result_files import CHECKPOINTS, RUN_FOLDERS, RunFile, SweepFile

EARLIER = "earlier"
"""Holds the files of earlier runs in the same folder, in a folder per run."""
DEFAULT_RESULTS = Path("runs")
LONGEST_NAME = 200
"""Bytes; file systems allow 255, and `.NAME.part` needs some of them."""
_STAMP = "%Y%m%d_%H%M%S"


def name_problem(name: str) -> str | None:
    """Return why an experiment cannot be a folder of that name, in a sentence, or None."""
    reason = None
    if not name or name in (EARLIER, *SweepFile):
        reason = "this name has another meaning in a results folder"
    elif name.startswith("."):
        reason = "it begins with a dot"
    elif any(sign in "/\\" or not sign.isprintable() for sign in name):
        reason = "it has a slash or a control character"
    elif len(name.encode()) > LONGEST_NAME:
        reason = f"it is longer than {LONGEST_NAME} bytes"
    if reason is None:
        return None
    return (
        f"Experiment {name[:60]!r}: its results cannot have a folder of this name, as {reason}; "
        "rename it."
    )


def new_root(results: Path) -> Path:
    """Make the folder `run_<timestamp>` of a sweep, a new one; raises ConfigError if it cannot."""
    stamp = f"run_{datetime.now():{_STAMP}}"
    with _refused(results):
        results.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            root = results / (stamp if number == 1 else f"{stamp}_{number}")
            with contextlib.suppress(FileExistsError):
                root.mkdir()
                return root
    raise _refusal(results, "it has too many folders of this second")


def new_run_folder(name: str) -> Path:
    """Return a new folder under `runs/` for a run; raises ConfigError if it cannot be made."""
    if sentence := name_problem(name):
        raise ConfigError([Problem("experiment", "name", name, sentence)])
    return new_root(DEFAULT_RESULTS) / name


class Folder:
    """A folder that one process writes.

    Attributes:
        path: absolute, so that a later change of the working directory changes nothing.
    """

    def __init__(self, path: Path, lock: int | None) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def claim(cls, directory: str | os.PathLike[str]) -> Folder:
        """Make a folder, check that files can be written in it, and lock it.

        Raises:
            ConfigError: it cannot be made or written, or another run writes it at the moment.
        """
        with _refused(directory):
            path = Path(directory).absolute()
            path.mkdir(parents=True, exist_ok=True)
            _probe(path)
            return cls(path, _locked(path))

    def make_again(self) -> None:
        """Make the folder if it has been deleted."""
        self.path.mkdir(parents=True, exist_ok=True)

    def set_earlier_run_aside(self) -> None:
        """Move the files of a run that was here before into `earlier/<its start time>/`."""
        earlier = [name for name in (*RunFile, *RUN_FOLDERS) if os.path.lexists(self.path / name)]
        if not earlier:
            return
        above = self.path / EARLIER
        if above.is_symlink():
            above.unlink()
        stamp, number = _started(self.path), 1
        aside = above / stamp
        while os.path.lexists(aside):
            number += 1
            aside = above / f"{stamp}_{number}"
        aside.mkdir(parents=True)
        for name in earlier:
            os.rename(self.path / name, aside / name)

    def set_earlier_checkpoints_aside(self, kept: str | None) -> None:
        """Move the checkpoints of a run that was here before; `kept` is one that is resumed.

        Raises:
            ConfigError: it is among them.
        """
        there = self.path / CHECKPOINTS
        if not os.path.lexists(there):
            return
        if kept is not None and Path(kept).absolute().is_relative_to(there):
            why = f"the run that is resumed is there, with its checkpoint '{kept}'"
            raise _refusal(self.path, why)
        aside = self.path / EARLIER / f"{CHECKPOINTS}_{datetime.now():{_STAMP}_%f}"
        aside.parent.mkdir(exist_ok=True)
        os.rename(there, aside)

    def release(self) -> None:
        """Let other runs have the folder; may be called again."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def probe_folder(directory: str | os.PathLike[str]) -> None:
    """Make a folder and check that files can be written in it; raises ConfigError."""
    with _refused(directory):
        path = Path(directory).absolute()
        path.mkdir(parents=True, exist_ok=True)
        _probe(path)


def _probe(path: Path) -> None:
    probe = path / f".probe.{os.getpid()}"
    probe.unlink(missing_ok=True)
    try:
        with probe.open("xb") as file:
            file.write(b"0" * 4096)
    finally:
        probe.unlink(missing_ok=True)


def _locked(path: Path) -> int | None:
    """Return the descriptor that holds the lock, None where the file system has no locks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise _refusal(path, "another run writes it at the moment") from None
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _started(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        info = read_json(path / RunFile.INFO)
        begun = info.get("started") or info.get("finished")
        return f"{datetime.fromisoformat(begun):{_STAMP}}"
    times = [(path / name).lstat().st_mtime for name in RunFile if os.path.lexists(path / name)]
    return f"{datetime.fromtimestamp(min(times, default=path.stat().st_mtime)):{_STAMP}}"


@contextlib.contextmanager
def _refused(directory: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise unwritable(directory, error) from None


def _refusal(directory: str | os.PathLike[str], reason: str) -> ConfigError:
    shown = repr(os.fspath(directory))
    sentence = (
        f"Folder {shown if len(shown) <= 200 else shown[:197] + '...'}: results cannot be written "
        f"there ({reason}); give a folder that can be written."
    )
    return ConfigError([Problem("folder", "directory", os.fspath(directory), sentence)])


def unwritable(directory: str | os.PathLike[str], error: OSError | ValueError) -> ConfigError:
    """Return the rejection of a folder that the operating system does not let us write."""
    return _refusal(directory, getattr(error, "strerror", None) or str(error))
