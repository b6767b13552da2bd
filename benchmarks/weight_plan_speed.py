"""How long the plan of 70 billion weights takes: `python -m benchmarks.weight_plan_speed`."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.table import show
from mimokit.planning.weights import plan_weights, read_directory
from tests.sparse_weights import LLAMA_70B, sparse_checkpoint

REPEATS = 15
FILES = 15


def rows() -> list[dict[str, Any]]:
    """Plan a Llama of 70 billion parameters at TP 8, PP 4, from sparse files."""
    with tempfile.TemporaryDirectory() as folder:
        directory = sparse_checkpoint(Path(folder), LLAMA_70B, FILES)
        headers = _median_milliseconds(lambda: read_directory(directory))
        checkpoint = read_directory(directory)
        planned = _median_milliseconds(lambda: plan_weights(checkpoint, 8, 4))
    name = "weights of 70 billion parameters, TP 8, PP 4"
    return [
        {
            "name": f"{name}: headers of {FILES} files",
            "measured": headers, "target": None, "unit": "ms", "ok": True,
        },
        {
            "name": f"{name}: plan",
            "measured": planned, "target": 200.0, "unit": "ms", "ok": planned <= 200,
        },
    ]  # fmt: skip


def _median_milliseconds(do: Any) -> float:
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        do()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1000


if __name__ == "__main__":
    show("Planning weights", rows())
