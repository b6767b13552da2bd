"""Seconds of the steps of a small training on this rank."""

import statistics
import time
from dataclasses import replace
from itertools import pairwise

from mimokit.config import ExperimentSections
from mimokit.config.runtime import Evaluations
from mimokit.engine.data.sources import TrainingData, default_data
from mimokit.engine.replicas import Peers
from mimokit.engine.training.loop import train_on_rank
from mimokit.planning.types import LayoutPlan
from mimokit.samples import Emit, Sample, StepSample


def median_step_seconds(
    plan: LayoutPlan,
    config: ExperimentSections,
    emit: Emit,
    warmup: int,
    peers: Peers | None = None,
) -> tuple[float, float]:
    """Train, and return the median seconds and CPU seconds between the ends of steps. Collective.

    Args:
        warmup: steps that are not counted.
        peers: of this rank in other replicas of the layout.
    """
    stamps: list[tuple[float, float]] = []

    def heard(sample: Sample) -> None:
        if isinstance(sample, StepSample):
            stamps.append((time.perf_counter(), time.process_time()))
        emit(sample)

    def without_test(config: ExperimentSections) -> TrainingData:
        return replace(default_data(config), test=None)

    train_on_rank(plan, config, heard, lambda: False, without_test, Evaluations(), peers=peers)
    wall, cpu = (
        statistics.median(stop - start for start, stop in pairwise(clock[warmup:]))
        for clock in zip(*stamps, strict=True)
    )
    return wall, cpu
