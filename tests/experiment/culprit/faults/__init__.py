"""Faults of parallel training that `explain` must name, by what they are faults of."""

from tests.experiment.culprit.faults import (
    attention,
    crossings,
    experts,
    gradients,
    matrices,
    routing,
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
    *routing.FAULTS,
    *gradients.FAULTS,
    *schedules.FAULTS,
    *updates.FAULTS,
    *experts.FAULTS,
)
