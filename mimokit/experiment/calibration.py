"""Measures a cluster, so that predictions apply to it."""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from mimokit.cluster import EngineCluster
from mimokit.config.errors import Problem, refuse_if_any
from mimokit.config.runtime import MEASURED_PRECISIONS
from mimokit.experiment.calibration_on_rank import calibrate_rank, calibrate_steps
from mimokit.planning.layout import plan_layout
from mimokit.prediction.calibration import Calibration, fit_calibration, measurements_of
from mimokit.prediction.calibration.cores import WARMUP, config_of_training, trainings
from mimokit.prediction.calibration.measurements import StepTime
from mimokit.prediction.hardware import save_hardware
from mimokit.progress import shown
from mimokit.samples import CalibrationSample, from_wire
from mimokit.units import counted

DEFAULT_PATH = "this-machine.json"


def calibrate(
    cluster: EngineCluster,
    path: str | os.PathLike[str] | None = None,
    *,
    precision: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Calibration:
    """Measure the performance of a cluster's ranks, and write it to a hardware file.

    All engines measure at once, as they do in training: matrix products, memory bandwidth, and
    collectives over 2, 4, 8, … ranks. Where ranks compute on a CPU, small trainings on 1, 2, 4, …
    of the engines follow, for what steps cost besides rates and how many cores ranks get. This
    takes half a minute on 8 engines of an idle laptop. With CUDA, matrix products are timed with
    events on the device.

    One engine, as on a machine with one GPU, measures no links: the file serves layouts of one rank
    until its `domain` and `network` are written by hand.

    Args:
        path: of the file, `this-machine.json` by default. `predict(..., hardware=path)` takes it,
            and so does `runtime.hardware` of a config, for the utilisation of a run.
        precision: fp32, bf16 or fp16: products and attention are measured in it alone; on a CPU
            fp32 besides, in which small trainings compute. None: in fp32 and bf16; what hardware
            has once for all precisions is that of bf16 on a GPU, of fp32 on a CPU.
        progress: called with a line before each measurement; None: a bar shows what is measured.

    Returns:
        The hardware, with the residuals of every fit; `print` shows them.

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
        ranks = cluster.run(calibrate_rank, precision, world_size=len(cluster), on_sample=hear)
        steps = list(_trained(cluster, tell)) if ranks[0].shares_cores else []
    fitted = fit_calibration(measurements_of(ranks, steps))
    return replace(fitted, path=save_hardware(fitted.hardware, target))


def _trained(cluster: EngineCluster, tell: Callable[[str], None]) -> Iterator[StepTime]:
    for training in trainings(len(cluster)):
        tell(f"calibrating: {counted(training.ranks, 'rank')} that train, {training}")
        config, world = config_of_training(training), training.ranks
        plan = plan_layout(config)
        times = cluster.run(calibrate_steps, plan, config, WARMUP, world_size=world)
        wall, cpu = (statistics.fmean(clock) for clock in zip(*times, strict=True))
        yield StepTime(training, wall, cpu)


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
