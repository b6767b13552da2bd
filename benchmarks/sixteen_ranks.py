"""Layouts of 16 ranks against one process: `python -m benchmarks.sixteen_ranks`.

Beyond the 8 engines of the tests. Memory is what all engines hold together after a verification,
pages that they share counted once (PSS).
"""

from __future__ import annotations

from typing import Any

import psutil

from benchmarks.table import show
from mimokit.cluster import EngineCluster
from mimokit.experiment import verify
from tests.layouts_apart import apart_config, apart_multimodal_config
from tests.layouts_multimodal import LANGUAGE, PRESENCE

RANKS = 16
TOLERANCE = 1e-5
LAYOUTS = {
    "vision TP2PP2DP2 → language TP2PP2DP2": apart_config((2, 2, 2), (2, 2, 2), 4),
    "clip TP2, dino PP2DP2, audio PP2, absent at times → language TP2PP2DP2": (
        apart_multimodal_config(
            {"clip": (2, 1, 1), "dino": (1, 2, 2), "audio": (1, 2, 1), LANGUAGE: (2, 2, 2)},
            4,
            presence=PRESENCE,
        )
    ),
}


def rows() -> list[dict[str, Any]]:
    """Verify each layout for five steps and return the figures of the table."""
    found = []
    with EngineCluster(n=RANKS, progress=False) as cluster:
        for name, config in LAYOUTS.items():
            ranks = config.model.total_world_size
            report = verify(cluster, config)
            for what, worst in (
                ("loss", report.max_loss_difference),
                ("gradients", report.max_gradient_difference),
                ("weights", report.max_weight_difference),
            ):
                found.append(_row(f"{name}, {ranks} ranks: {what}", worst, TOLERANCE, ""))
            held = [psutil.Process(pid).memory_full_info().pss / 1e6 for pid in cluster.pids]
            found.append(_row(f"{name}: memory of all engines", sum(held) / 1e3, None, "GB"))
            found.append(_row(f"{name}: memory of the largest engine", max(held), None, "MB"))
    return found


def _row(name: str, measured: float, target: float | None, unit: str) -> dict[str, Any]:
    ok = target is None or measured <= target
    return {"name": name, "measured": measured, "target": target, "unit": unit, "ok": ok}


if __name__ == "__main__":
    show("Layout invariance on 16 ranks", rows())
