"""Where mimokit keeps what outlives a process, for this user alone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def state_folders() -> list[Path]:
    """Return the folders to try in turn: the user's for state, then one for temporary files."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return [Path(state) / "mimokit", Path(tempfile.gettempdir()) / f"mimokit-{os.geteuid()}"]
