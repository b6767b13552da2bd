"""The folder of this user for what outlives a process: caches of compilers.

Compilers load libraries and pickles from their caches, so only we may write there. torch's own
place is below the directory for temporary files, where others can be first.
"""

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from mimokit.cluster.errors import ClusterError

CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""Variable of a compiler -> its folder."""


def state_folder() -> Path:
    """Return the folder, which is made at the first call.

    It is in the user's directory for state or, where that cannot be written, in the one for
    temporary files.

    Raises:
        ClusterError: it belongs to another user, is a link, or others can write there.
        OSError: the disk is full, or the folder cannot be made.
    """
    *earlier, last = _places()
    for folder in earlier:
        try:
            return _checked(folder)
        except OSError:
            continue
    return _checked(last)


def compiler_caches() -> dict[str, str]:
    """Return the variables that have compilers keep their caches in the folder, unless set.

    Raises:
        ClusterError: see `state_folder`.
    """
    if not (unset := CACHES.keys() - os.environ.keys()):
        return {}
    try:
        folder = state_folder()
    except OSError:  # nothing can be kept: what they would write there fails as well
        return {}
    return {variable: str(folder / CACHES[variable]) for variable in unset}


def _places() -> list[Path]:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return [Path(state) / "mimokit", Path(tempfile.gettempdir()) / f"mimokit-{os.geteuid()}"]


def _checked(folder: Path) -> Path:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    facts = folder.lstat()
    why = None
    if not stat.S_ISDIR(facts.st_mode):
        why = "is a link or a file"
    elif facts.st_uid != os.geteuid():
        why = "belongs to another user"
    elif stat.S_IMODE(facts.st_mode) & 0o022:
        why = "can be written by others"
    if why is not None:
        raise ClusterError(
            f"{folder}, where mimokit keeps caches, {why}: remove it, or name a directory of yours "
            "in XDG_STATE_HOME"
        )
    if stat.S_IMODE(facts.st_mode) & 0o077:
        folder.chmod(0o700)  # as version 0.1 left it, which others could read but not write
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written")
    return folder
