"""The key with which the processes of one user sign what they leave in the store of a job."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from pathlib import Path

from mimokit.cluster.errors import ClusterError

VARIABLE = "MIMOKIT_JOB_KEY"
"""Any text that the ranks of a job have and nobody else, for hosts without a common home."""
FILE = "job.key"
SAME_KEY = f"give all hosts one home directory, or the same secret text in {VARIABLE}"


def user_key() -> bytes:
    """Return the key of this user: that of the environment, or else of a file.

    The file is made at the first call, in the user's directory for state or, where that cannot be
    written, in the one for temporary files. Nobody else can read it.

    Raises:
        ClusterError: others can read the file or own it, or there is no place for it.
    """
    if given := os.environ.get(VARIABLE):
        return given.encode()
    reason: object = "there is no directory for it"
    for folder in _folders():
        try:
            return _of_file(folder)
        except OSError as error:
            reason = error
    raise ClusterError(f"the key of this job cannot be kept in a file ({reason}); {SAME_KEY}")


def _folders() -> list[Path]:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return [Path(state) / "mimokit", Path(tempfile.gettempdir()) / f"mimokit-{os.geteuid()}"]


def _of_file(folder: Path) -> bytes:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / FILE
    if not file.exists():
        # A link is there at once and whole, whichever of several ranks makes it.
        own = folder / f"{FILE}.{secrets.token_hex(8)}"
        descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as text:
            text.write(secrets.token_hex(32))
        try:
            with contextlib.suppress(FileExistsError):
                os.link(own, file)
        finally:
            own.unlink()
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as content:
        facts = os.fstat(content.fileno())
        if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077:
            raise ClusterError(f"{file} is the key of your jobs, and others can read it: delete it")
        return content.read()
