"""The order in which pipeline stages work, and the time that it takes.

`stage_graph` lists the stages of all modules, `plan_schedule` orders their work and checks the
order, `simulate` puts it on a clock, and `makespan` does so for many sets of times at once.

A schedule holds one program per stage: a list of actions that its ranks execute in order. Two
stages and three micro-batches under 1F1B, where F1 is the forward of micro-batch 1 and B1 its
backward:

    >>> from mimokit.planning.schedule import plan_schedule, simulate, stage_graph
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

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.planning.schedule.actions import Action as Action
    from mimokit.planning.schedule.actions import Order as Order
    from mimokit.planning.schedule.actions import ScheduleError as ScheduleError
    from mimokit.planning.schedule.actions import Step as Step
    from mimokit.planning.schedule.check import check_actions as check_actions
    from mimokit.planning.schedule.check import plan_schedule as plan_schedule
    from mimokit.planning.schedule.graph import Stage as Stage
    from mimokit.planning.schedule.graph import StageEdge as StageEdge
    from mimokit.planning.schedule.graph import StageGraph as StageGraph
    from mimokit.planning.schedule.graph import shared_graph as shared_graph
    from mimokit.planning.schedule.graph import stage_graph as stage_graph
    from mimokit.planning.schedule.interleaved_order import held_stages as held_stages
    from mimokit.planning.schedule.interleaved_order import interleaved as interleaved
    from mimokit.planning.schedule.orders import InGroups as InGroups
    from mimokit.planning.schedule.orders import SharedOrder as SharedOrder
    from mimokit.planning.schedule.orders import gpipe as gpipe
    from mimokit.planning.schedule.orders import num_warmup_microbatches as num_warmup_microbatches
    from mimokit.planning.schedule.orders import (
        one_forward_one_backward as one_forward_one_backward,
    )
    from mimokit.planning.schedule.orders import zero_bubble as zero_bubble
    from mimokit.planning.schedule.schedule import Schedule as Schedule
    from mimokit.planning.schedule.simulation import makespan as makespan
    from mimokit.planning.schedule.simulation import simulate as simulate
    from mimokit.planning.schedule.simulation import unit_timeline as unit_timeline
    from mimokit.planning.schedule.slots import MODALITIES as MODALITIES
    from mimokit.planning.schedule.slots import Modality as Modality
    from mimokit.planning.schedule.slots import SlotPlan as SlotPlan
    from mimokit.planning.schedule.slots import StageSlots as StageSlots
    from mimokit.planning.schedule.slots import plan_slots as plan_slots
    from mimokit.planning.schedule.timeline import Interval as Interval
    from mimokit.planning.schedule.timeline import Timeline as Timeline
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
