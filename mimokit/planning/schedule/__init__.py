"""The order in which pipeline stages work, and the time that it takes.

`stage_graph` lists the stages of all modules, `plan_schedule` orders their work and checks the
order, `simulate` puts it on a clock, and `makespan` does so for many sets of times at once.

A schedule holds one program per stage: a list of actions that its ranks execute in order. Two
stages and three micro-batches under 1F1B, where F1 is the forward of micro-batch 1 and B1 its
backward:

    >>> graph = stage_graph({"language": ()}, {"language": 2})
    >>> schedule = plan_schedule(graph, num_microbatches=3)
    >>> for stage in (0, 1):
    ...     steps = schedule.steps(stage)
    ...     print(" ".join(f"{kind[0].upper()}{microbatch}" for kind, microbatch in steps))
    F0 F1 B0 F2 B1 B2
    F0 B0 F1 B1 F2 B2

Stage 0 begins with one warm-up forward, as one stage follows it. Around each forward and backward
stand the messages that it needs and produces:

    >>> for action in schedule.actions(0):
    ...     print(action)
    load of 0
    forward of 0
    send-forward of 0 ('language') to stage 1
    load of 1
    forward of 1
    send-forward of 1 ('language') to stage 1
    receive-backward of 0 ('language') from stage 1
    backward of 0
    load of 2
    forward of 2
    send-forward of 2 ('language') to stage 1
    receive-backward of 1 ('language') from stage 1
    backward of 1
    receive-backward of 2 ('language') from stage 1
    backward of 2
    grad-sync
    optimizer

With a forward of 1 and a backward of 2, both stages are idle for (p - 1) / (m + p - 1) of the time:

    >>> timeline = simulate(schedule)
    >>> timeline.makespan, timeline.bubble
    (12.0, (0.25, 0.25))
"""

from mimokit.planning.schedule.actions import Action, Order, ScheduleError, Step
from mimokit.planning.schedule.check import check_actions, plan_schedule
from mimokit.planning.schedule.graph import Stage, StageEdge, StageGraph, shared_graph, stage_graph
from mimokit.planning.schedule.interleaved import held_stages, interleaved
from mimokit.planning.schedule.orders import (
    InGroups,
    SharedOrder,
    gpipe,
    num_warmup_microbatches,
    one_forward_one_backward,
    shared_ranks,
    zero_bubble,
)
from mimokit.planning.schedule.schedule import Schedule
from mimokit.planning.schedule.simulation import makespan, simulate
from mimokit.planning.schedule.slots import MODALITIES, Modality, SlotPlan, StageSlots, plan_slots
from mimokit.planning.schedule.timeline import Interval, Timeline

__all__ = [
    "MODALITIES",
    "Action",
    "InGroups",
    "Interval",
    "Modality",
    "Order",
    "Schedule",
    "ScheduleError",
    "SharedOrder",
    "SlotPlan",
    "Stage",
    "StageEdge",
    "StageGraph",
    "StageSlots",
    "Step",
    "Timeline",
    "check_actions",
    "gpipe",
    "held_stages",
    "interleaved",
    "makespan",
    "num_warmup_microbatches",
    "one_forward_one_backward",
    "plan_schedule",
    "plan_slots",
    "shared_graph",
    "shared_ranks",
    "simulate",
    "stage_graph",
    "zero_bubble",
]
