"""Measures a cluster, so that predictions apply to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mimokit.cluster import EngineCluster
from mimokit.config.errors import Problem, refuse_if_any
from mimokit.config.runtime import MEASURED_PRECISIONS
from mimokit.experiment import on_rank
from mimokit.prediction.calibration import Calibration, fit_calibration, merge, save_calibration
from mimokit.progress import shown
from mimokit.samples import CalibrationSample, from_wire

DEFAULT_PATH = "this-machine.json"


def calibrate(
    cluster: EngineCluster,
    path: str | os.PathLike[str] | None = None,
    *,
    precision: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Calibration:
    """Measure the performance of a cluster's ranks, and write it to a hardware file.

    All engines measure at once, as they do in training: matrix products, memory bandwidth,
    collectives over 2, 4, 8, … ranks, and the pieces of a training step. If ranks share cores,
    pieces and collectives are measured again on 2, 4, … of the engines while the others sleep. This
    takes less than half a minute on 8 engines of an idle laptop. With CUDA, matrix products are
    timed with events on the device.

    One engine, as on a machine with one GPU, measures no links: the file serves layouts of one rank
    until its `domain` and `network` are written by hand.

    Args:
        path: of the file, `this-machine.json` by default. `predict(..., hardware=path)` takes it,
            and so does `runtime.hardware` of a config, for the utilisation of a run.
        precision: fp32, bf16 or fp16: products and attention are measured in it alone. None: in
            fp32 and bf16; what hardware has once for all precisions is that of bf16 on a GPU, of
            fp32 on a CPU.
        progress: called with a line before each measurement; None: a bar shows what is measured.

    Returns:
        The fitted constants, with the residuals of every fit; `print` shows them.

    Raises:
        ConfigError: an unknown precision, or a path that does not end in .json.
        ClusterError: the cluster is closed, or cannot form a world.
        RankDied: the process of a rank died.
    """
    target = os.fspath(path) if path is not None else DEFAULT_PATH
    _check(precision, target)

    def hear(message: Mapping[str, Any]) -> None:
        sample = from_wire(message)
        if isinstance(sample, CalibrationSample):
            tell(f"calibrating: {sample.part}")

    with shown("calibrating", wanted=progress is None) as bar:
        tell = progress or partial(bar.update, None)
        measured = cluster.run(
            on_rank.calibrate_rank, precision, world_size=len(cluster), on_sample=hear
        )
    return save_calibration(fit_calibration(merge(measured)), target)


def _check(precision: str | None, path: str) -> None:
    problems = []
    if precision not in (None, *MEASURED_PRECISIONS):
        sentence = (
            f"Calibration: precision {precision!r} cannot be measured; give one of "
            f"{', '.join(MEASURED_PRECISIONS)}, or leave it out for fp32 and bf16."
        )
        problems.append(Problem("calibration", "precision", precision, sentence))
    if not path.endswith(".json"):
        sentence = (
            f"Calibration: the path '{path}' does not end in .json, which distinguishes a file "
            "from a name; add it."
        )
        problems.append(Problem("calibration", "path", path, sentence))
    refuse_if_any(problems)
