"""The step-through of an optimizer step: ticks of all ranks, and what crosses between them.

`clock_of` returns the ticks, `planned_crossings` what is sent and received at a tick, and
`differences` where a run deviates from it.
"""

from mimokit.planning.stepper.clock import PlannedStep, Tick, clock_of
from mimokit.planning.stepper.crossings import (
    Crossing,
    PlanDifference,
    SeenCrossing,
    differences,
    planned_crossings,
)

__all__ = [
    "Crossing",
    "PlanDifference",
    "PlannedStep",
    "SeenCrossing",
    "Tick",
    "clock_of",
    "differences",
    "planned_crossings",
]
