"""`benchmarks/history.json`: a row per tag, as it was measured last."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from benchmarks.against.measuring import Figures, middle


def rows(file: Path) -> dict[str, Any]:
    """Return tag -> the machine, and what -> unit -> median."""
    return dict(json.loads(file.read_text())) if file.exists() else {}


def record(file: Path, tag: str, figures: Figures) -> None:
    """Write the row of a tag, in place of an earlier one."""
    content = rows(file)
    medians: dict[str, dict[str, float]] = {}
    for what, unit in figures:
        medians.setdefault(what, {})[unit] = float(f"{middle(figures, (what, unit)):.4g}")
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    content[tag] = {"machine": machine, "figures": medians}
    file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
