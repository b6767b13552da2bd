"""`make demo` without its set-up."""

from __future__ import annotations

import subprocess
import sys
import tempfile

NOTEBOOK = "notebooks/01_first_light.ipynb"

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        program = "mimokit_widgets.notebooks.execute"
        subprocess.run([sys.executable, "-m", program, NOTEBOOK, "--output", folder], check=True)
