"""The functions that measure on ranks, for `mimokit.calibrate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mimokit.config import ExperimentSections
from mimokit.experiment.on_rank import send_sample
from mimokit.planning.types import LayoutPlan

if TYPE_CHECKING:
    from mimokit.prediction.calibration import RankMeasurements


def calibrate_rank(precision: str | None) -> RankMeasurements:
    """Measure on this rank; the caller receives a sample before each part."""
    from mimokit.engine.calibration import measure

    return measure(send_sample, precision)


def calibrate_steps(
    plan: LayoutPlan, config: ExperimentSections, warmup: int
) -> tuple[float, float]:
    """Train on this rank; return the seconds and CPU seconds of a step."""
    from mimokit.engine.calibration import median_step_seconds
    from mimokit.engine.run_of_rank import RunOfRank

    return median_step_seconds(RunOfRank(plan, config), send_sample, warmup)
