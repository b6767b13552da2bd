"""Which layouts to run, so that their seconds tell most about the constants of a training stack."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mimokit.prediction.own_runs.fit import NOISE, PRIOR, STEP
from mimokit.prediction.prediction import predict_task
from mimokit.prediction.step_time import Software
from mimokit.prediction.step_time.software import movable
from mimokit.prediction.task import PredictionTask


def most_telling(tasks: Sequence[PredictionTask], count: int = 3) -> tuple[int, ...]:
    """Return the places of the layouts whose runs would teach most, the most telling first.

    They shrink the volume of what runs leave possible of the constants most (D-optimal design,
    chosen one after the other): each adds the direction in which the others say least.
    """
    if not tasks:
        return ()
    slopes = np.stack([_slopes(task) for task in tasks]) / NOISE
    information = np.eye(slopes.shape[1]) / PRIOR**2
    chosen: list[int] = []
    for _ in range(min(count, len(tasks))):
        spread = np.einsum("ij,jk,ik->i", slopes, np.linalg.inv(information), slopes)
        spread[chosen] = -1.0
        best = int(spread.argmax())
        chosen.append(best)
        information += np.outer(slopes[best], slopes[best])
    return tuple(chosen)


def _slopes(task: PredictionTask) -> np.ndarray:
    """Return the change of the log of a layout's seconds per change of the log of each constant."""
    software = task.system.software
    base = _log_seconds(task, software)
    slopes = []
    for name in movable(task.system.hardware.name, software):
        value = getattr(software, name)
        moved = replace(software, **{name: value * math.exp(STEP)})
        slopes.append((_log_seconds(task, moved) - base) / STEP if value else 0.0)
    return np.array(slopes)


def _log_seconds(task: PredictionTask, software: Software) -> float:
    system = replace(task.system, software=software)
    return math.log(predict_task(replace(task, system=system)).seconds)
