"""In which order every pipeline stage works, and what that costs.

`stage_graph` lays the stages of all modules out, `plan_schedule` orders their work and checks the
order, `simulate` puts it on a clock, `makespan` does so for many candidate timings at once.
"""

from mimokit.planning.schedule.actions import (
    Action,
    Order,
    Step,
    gpipe,
    num_warmup_microbatches,
    one_forward_one_backward,
)
from mimokit.planning.schedule.check import ScheduleError, check_actions
from mimokit.planning.schedule.graph import Stage, StageEdge, StageGraph, stage_graph
from mimokit.planning.schedule.planning import check_schedule, plan_schedule
from mimokit.planning.schedule.schedule import Schedule
from mimokit.planning.schedule.simulation import makespan, simulate
from mimokit.planning.schedule.slots import MODALITIES, Modality, SlotPlan, StageSlots, plan_slots
from mimokit.planning.schedule.timeline import Interval, Timeline

__all__ = [
    "MODALITIES",
    "Action",
    "Interval",
    "Modality",
    "Order",
    "Schedule",
    "ScheduleError",
    "SlotPlan",
    "Stage",
    "StageEdge",
    "StageGraph",
    "StageSlots",
    "Step",
    "Timeline",
    "check_actions",
    "check_schedule",
    "gpipe",
    "makespan",
    "num_warmup_microbatches",
    "one_forward_one_backward",
    "plan_schedule",
    "plan_slots",
    "simulate",
    "stage_graph",
]
