"""Commands that tests run to their end."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run_to_end(command: Sequence[str | Path], **options: Any) -> "subprocess.CompletedProcess[str]":
    """Return what a command said, whatever its status is."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)
