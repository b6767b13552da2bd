"""How all ranks go through an optimizer step together, and what crosses between them on the way.

`clock_of` says who does what at which tick, `planned_crossings` what is sent at a tick, and
`differences` what of it happened otherwise.
"""

from mimokit.planning.stepper.check import Difference, differences
from mimokit.planning.stepper.clock import PlannedStep, Tick, clock_of
from mimokit.planning.stepper.crossings import Crossing, Piece, planned_crossings

__all__ = [
    "Crossing",
    "Difference",
    "Piece",
    "PlannedStep",
    "Tick",
    "clock_of",
    "differences",
    "planned_crossings",
]
