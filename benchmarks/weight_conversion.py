"""Converting 1 GB into 4 rank files and back: `python -m benchmarks weight_conversion`.

Each conversion is a process. Its private memory (`RssAnon`) is read every millisecond.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.table import show
from benchmarks.weight_loading import RANKS, PrivateMemory, random_checkpoint


def rows() -> list[dict[str, Any]]:
    """Convert there and back."""
    with tempfile.TemporaryDirectory() as folder:
        directory, layout = random_checkpoint(Path(folder)), Path(folder) / "layout"
        size = (directory / "model.safetensors").stat().st_size
        there = _converted("there", directory, layout)
        back = _converted("back", layout, Path(folder) / "back")
    name = f"conversion of {size / 1e9:.2g} GB"
    return [
        row
        for way, found in ((f"into {RANKS} rank files", there), ("back", back))
        for row in (
            _row(f"{name} {way}", size / found["seconds"] / 1e6, "MB/s"),
            _row(f"{name} {way}: growth of private memory", found["growth"] / 1e6, "MB"),
        )
    ]


def _row(name: str, measured: float, unit: str) -> dict[str, Any]:
    return {"name": name, "measured": measured, "target": None, "unit": unit, "ok": True}


def _converted(way: str, source: Path, target: Path) -> dict[str, float]:
    """Convert in another process; return its seconds and the growth of its private memory."""
    command = [sys.executable, "-m", "benchmarks.weight_conversion", way]
    out = subprocess.run([*command, source, target], stdout=subprocess.PIPE, check=True).stdout
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


def _convert(way: str, source: str, target: str) -> None:
    import torch

    from mimokit.engine.weights import convert_to_hf, convert_to_layout

    torch.set_num_threads(1)
    with PrivateMemory() as memory:
        begin = time.perf_counter()
        if way == "there":
            convert_to_layout(source, target, RANKS)
        else:
            convert_to_hf(source, target)
        seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "growth": memory.growth}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _convert(*sys.argv[1:])
    else:
        show("Converting weights", rows())
