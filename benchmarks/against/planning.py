"""What the planning half takes, in one process of the tree that is imported."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import mimokit
from mimokit import Workload
from mimokit_widgets import LayoutPlanner

PRESET = "preset:llava_7b_colocated"


def spent(call: Callable[[int], object], times: int) -> dict[str, float]:
    """Return the median of calls, after one that warms up."""
    call(0)
    cpu, clock = [], []
    for number in range(times):
        before, began = time.process_time(), time.perf_counter()
        call(1 + number)
        cpu.append(time.process_time() - before)
        clock.append(time.perf_counter() - began)
    return {"CPU s": statistics.median(cpu), "clock s": statistics.median(clock)}


def search(gpus: int) -> object:
    """Search all layouts of a model."""
    workload = Workload(4096, 512)
    return mimokit.search("llava-1.5-7b", gpus=gpus, gpu="h100", workload=workload)


def main() -> None:
    """Print the figures as JSON."""
    planner = LayoutPlanner(PRESET)
    path = ["data", "num_microbatches"]

    def edit(number: int) -> None:
        text = str(2 + number)  # a layout that was not planned before
        planner._on_message(None, {"type": "edit", "path": path, "text": text}, [])

    figures = {
        "plan of 8 ranks": spent(lambda _: mimokit.plan(PRESET), 20),
        "prediction": spent(lambda _: mimokit.predict(PRESET), 20),
        "search, 64 GPUs": spent(lambda _: search(64), 3),
        "search, 1,024 GPUs": spent(lambda _: search(1024), 1),
        "planner edit, in the kernel": spent(edit, 20),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
