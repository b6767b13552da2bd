"""Seconds of the steps of a small training on this rank."""

import statistics
import time
from dataclasses import replace
from itertools import pairwise

from mimokit.config import ExperimentSections
from mimokit.config.runtime import Evaluations
from mimokit.engine.data.sources import TrainingData
from mimokit.engine.run_of_rank import RunOfRank
from mimokit.engine.training.loop import train_on_rank
from mimokit.samples import Emit, Sample, StepSample


def median_step_seconds(run: RunOfRank, emit: Emit, warmup: int) -> tuple[float, float]:
    """Train, and return the median seconds and CPU seconds between the ends of steps. Collective.

    Args:
        warmup: steps that are not counted.
    """
    stamps: list[tuple[float, float]] = []

    def heard(sample: Sample) -> None:
        if isinstance(sample, StepSample):
            stamps.append((time.perf_counter(), time.process_time()))
        emit(sample)

    def without_test(config: ExperimentSections) -> TrainingData:
        return replace(run.source(config), test=None)

    train_on_rank(replace(run, source=without_test), heard, lambda: False, Evaluations())
    wall, cpu = (
        statistics.median(stop - start for start, stop in pairwise(clock[warmup:]))
        for clock in zip(*stamps, strict=True)
    )
    return wall, cpu
