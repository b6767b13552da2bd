"""`make demo` without its set-up."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

NOTEBOOK = "notebooks/01_first_light.ipynb"

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        package = "make" if Path("make/notebooks").is_dir() else "mimokit_widgets"
        program = f"{package}.notebooks.execute"
        subprocess.run([sys.executable, "-m", program, NOTEBOOK, "--output", folder], check=True)
