"""Measures a cluster, so that predictions hold for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from mimokit.cluster import EngineCluster
from mimokit.config.errors import Problem, refuse_if_any
from mimokit.experiment import on_rank
from mimokit.prediction.calibration import Calibration, fit_calibration, merge, save_calibration
from mimokit.samples import CalibrationSample, from_wire

DEFAULT_PATH = "this-machine.json"


def calibrate(
    cluster: EngineCluster,
    path: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[str], None] = print,
) -> Calibration:
    """Measure what the ranks of a cluster reach, and write it to a hardware file.

    Matrix products, memory, collectives over 2, 4, 8, … ranks and the pieces of a training step
    are measured on all engines at once, since that is how they train; pieces and collectives then
    also on 2, 4, … of them while the others sleep, where ranks share cores. It takes less than half
    a minute on 8 engines of an idle laptop. With CUDA the products are timed between events on the
    device.

    Args:
        cluster: all of its engines take part.
        path: of the file, `this-machine.json` by default. `predict(..., hardware=path)` takes it.
        progress: is told what is measured.

    Returns:
        What was found, with the residuals of every law; `print` shows them.

    Raises:
        ConfigError: fewer than 2 engines, or a path that does not end in .json.
        ClusterError: the cluster is closed, or cannot form a world.
        RankDied: the process of a rank died on the way.
    """
    target = os.fspath(path) if path is not None else DEFAULT_PATH
    _check(cluster, target)

    def hear(message: Mapping[str, Any]) -> None:
        sample = from_wire(message)
        if isinstance(sample, CalibrationSample):
            progress(f"calibrating: {sample.part}")

    measured = cluster.run(on_rank.calibrate_rank, world_size=len(cluster), on_sample=hear)
    return save_calibration(fit_calibration(merge(measured)), target)


def _check(cluster: EngineCluster, path: str) -> None:
    engines = len(cluster)
    problems = []
    if engines < 2:
        sentence = (
            f"Calibration: the cluster has {engines} engine, and collectives take at least 2; "
            "start one with EngineCluster(n=2) or more."
        )
        problems.append(Problem("calibration", "cluster", engines, sentence))
    if not path.endswith(".json"):
        sentence = (
            f"Calibration: the path '{path}' does not end in .json, by which predict tells a file "
            "from a name; add it."
        )
        problems.append(Problem("calibration", "path", path, sentence))
    refuse_if_any(problems)
