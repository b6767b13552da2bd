"""Layouts a second by the closed forms: `python -m benchmarks.prediction_speed`.

Measured in seconds of one core, so that other work on the machine counts little.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.table import show
from mimokit.architecture import load_model
from mimokit.config.runtime import DeploymentMode
from mimokit.config.sizes import ParallelSizes
from mimokit.prediction import Layout, Workload, costs_of, layout_cost, predict
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.step_time import System, load_software

LAYOUTS = 20_000
REPEATS = 7
WORKLOAD = Workload(seq_length=4096, global_batch_size=1024)
MODES: tuple[DeploymentMode, ...] = ("homogeneous", "colocated", "heterogeneous")
MOST_SECONDS = LAYOUTS / 100_000
MOST_SECONDS_OF_ONE = 2e-3


def rows() -> list[dict[str, Any]]:
    """Measure arrays of layouts from their sizes to memory and step time, on one core."""
    model = load_model("qwen2.5-vl-7b")
    system = System(load_hardware("h100"), load_software("megatron-bridge"), WORKLOAD.precision)

    def closed_form(mode: DeploymentMode) -> None:
        layout = Layout(mode, {"images": sizes(1), "language": sizes(0)})
        language, encoders = costs_of(model, layout, WORKLOAD, system)
        outcome = layout_cost(mode, language, encoders, WORKLOAD, system)
        assert np.size(outcome.seconds) == LAYOUTS

    found = [
        _row(f"{LAYOUTS:,} layouts, {mode}", lambda mode=mode: closed_form(mode), MOST_SECONDS)
        for mode in MODES
    ]
    one = Layout(
        "colocated", {"images": ParallelSizes(data=64), "language": ParallelSizes(4, 2, data=8)}
    )
    lengths = itertools.count(4096, 64)  # a length that was never predicted is all new

    def new() -> None:
        predict(model, one, replace(WORKLOAD, seq_length=next(lengths)))

    known = _row("one layout again", lambda: predict(model, one, WORKLOAD), MOST_SECONDS_OF_ONE)
    return [*found, _row("one new layout, simulated", new, MOST_SECONDS_OF_ONE), known]


def sizes(seed: int) -> ParallelSizes:
    """Return layouts of powers of two, drawn at random."""
    draw = np.random.default_rng(seed)

    def powers(most: int) -> NDArray[np.int64]:
        return np.asarray(2 ** draw.integers(0, most + 1, LAYOUTS), dtype=np.int64)

    return ParallelSizes(
        tensor=powers(3),
        pipeline=powers(2),
        data=powers(6),
        micro_batch=powers(2),
        recompute=draw.integers(0, 3, LAYOUTS),
    )


def _row(name: str, work: Callable[[], object], target: float) -> dict[str, Any]:
    times = []
    for _ in range(REPEATS):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    median = statistics.median(times)
    return {
        "name": name,
        "measured": 1000 * median,
        "target": 1000 * target,
        "unit": "ms",
        "ok": median <= target,
    }


def main() -> None:
    """Print the measurements."""
    show("Predicting", rows())


if __name__ == "__main__":
    main()
