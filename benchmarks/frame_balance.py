"""How good and how fast plans of frames are: `python -m benchmarks.frame_balance`.

Planner time without compilation: the best of several calls, by the CPU time of the thread.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.table import show
from mimokit.planning.frames import FramePlan, lpt_balance, plan_frames
from tests.planning.frames.batches import FEW_SIZES, fewest_ranks, images, mixed, videos

REPEATS = 7
SEEDS = range(5)
BATCHES = {
    "images": images,
    "mixed": mixed,
    "videos of 6 HD formats": functools.partial(videos, sizes=FEW_SIZES[3]),
    "videos of 6 small formats": videos,
}
# (batch, frames, ranks): makespan over max(mean, largest frame) in %, milliseconds
CASES: dict[tuple[str, int, int], tuple[float | None, float | None]] = {
    ("images", 64, 8): (None, None),
    ("images", 1_024, 64): (0.1, 1.0),
    ("mixed", 1_024, 64): (0.1, 1.0),
    ("videos of 6 HD formats", 1_024, 256): (None, None),
    ("videos of 6 small formats", 1_024, 256): (None, None),
    ("videos of 6 HD formats", 4_096, 1_024): (None, None),
    ("images", 100_000, 1_024): (0.1, 25.0),
    ("mixed", 100_000, 1_024): (0.1, 25.0),
}


def rows() -> list[dict[str, Any]]:
    """Return the figures of the table."""
    found = []
    for (batch, frames, ranks), (balance, milliseconds) in CASES.items():
        loads = [BATCHES[batch](frames, seed) for seed in SEEDS]
        name = f"{batch}, {frames:,} frames x {ranks:,} ranks"
        plans = [plan_frames(load, ranks) for load in loads]
        lpt = max(
            FramePlan.of(lpt_balance(load, ranks)[0], load, ranks).imbalance for load in loads
        )
        worst = max(plan.imbalance for plan in plans)
        lpt_text = f"LPT {_percent(lpt):.2g} %"
        found.append(
            _row(f"{name}: makespan above the mean; {lpt_text}", _percent(worst), balance, "%")
        )
        taken = _milliseconds(lambda load=loads[0], ranks=ranks: plan_frames(load, ranks))
        found.append(_row(f"{name}: planner", taken, milliseconds, "ms"))
    return [*found, _proven(), *_with_homes()]


def _proven() -> dict[str, Any]:
    """Count plans for which a linear program shows that no lower makespan is possible."""
    ranks, batches = 256, [videos(1_024, seed, sizes) for sizes in FEW_SIZES for seed in SEEDS]
    proven = sum(
        fewest_ranks(loads, plan_frames(loads, ranks).makespan - 1) > ranks + 1e-6
        for loads in batches
    )
    return {
        "name": f"videos, 1,024 frames x 256 ranks, {len(FEW_SIZES)} sets of 6 formats: batches of "
        f"{len(batches)} whose plan a linear program proves to be the best",
        "measured": proven,
        "target": f"{len(batches)}",
        "unit": "",
        "ok": proven == len(batches),
    }


def _with_homes() -> list[dict[str, Any]]:
    frames, ranks, found = 1_024, 64, []
    home = np.repeat(np.arange(ranks), frames // ranks)
    name = f"mixed, {frames:,} x {ranks} with homes"
    for tolerance in (0.0, 0.005):
        plans = [
            plan_frames(mixed(frames, seed), ranks, home=home, tolerance=tolerance)
            for seed in SEEDS
        ]
        title = f"{name}, tolerance {tolerance:g}"
        worst, moved = max(p.imbalance for p in plans), max(p.moved for p in plans)
        found.append(_row(f"{title}: makespan above the mean", _percent(worst), 1.0, "%"))
        found.append(_row(f"{title}: patches moved", 100 * moved, 25.0, "%"))
    loads = mixed(frames)
    taken = _milliseconds(lambda: plan_frames(loads, ranks, home=home))
    return [*found, _row(f"{name}: planner", taken, None, "ms")]


def _percent(ratio: float) -> float:
    return 100 * (ratio - 1)


def _milliseconds(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(REPEATS):
        began = time.thread_time()
        call()
        times.append(time.thread_time() - began)
    return 1000 * min(times)


def _row(name: str, measured: float, target: float | None, unit: str) -> dict[str, Any]:
    ok = target is None or measured <= target
    return {"name": name, "measured": measured, "target": target, "unit": unit, "ok": ok}


if __name__ == "__main__":
    show("Balancing frames", rows())
