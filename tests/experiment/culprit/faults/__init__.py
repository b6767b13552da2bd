"""Faults of parallel training that `explain` must name, by what they are faults of."""

from __future__ import annotations

from tests.experiment.culprit.faults import (
    attention,
    crossings,
    experts,
    gradients,
    matrices,
    samples,
    schedules,
    updates,
)
from tests.experiment.culprit.faults.fault import Fault

FAULTS: tuple[Fault, ...] = (
    *matrices.FAULTS,
    *attention.FAULTS,
    *samples.FAULTS,
    *crossings.FAULTS,
    *experts.FAULTS,
    *gradients.FAULTS,
    *schedules.FAULTS,
    *updates.FAULTS,
)
