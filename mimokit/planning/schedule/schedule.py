"""A pipeline schedule: graph, order and micro-batches; its actions are computed on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from mimokit.planning.schedule.actions import (
    Action,
    ComputeKind,
    Order,
    Step,
    num_warmup_microbatches,
    one_forward_one_backward,
)
from mimokit.planning.schedule.check import ScheduleError
from mimokit.planning.schedule.graph import StageEdge, StageGraph
from mimokit.planning.schedule.work import Flags, Work, work_of
from mimokit.step_kinds import StepKind


@dataclass(frozen=True)
class Schedule:
    """The actions of every stage in order. It stays small: actions are computed on request.

    Attributes:
        graph: the stages.
        num_microbatches: micro-batches per optimizer step.
        order: the order of work.
        frozen: modules of which nothing is trained. If nothing before them is trained either, they
            have no backward and receive no gradients.
        absent: (module, micro-batch) pairs for which a module has no input: it neither computes
            nor sends, and no stage waits for it.
        loading: indices of the stages that read data.
    """

    graph: StageGraph
    num_microbatches: int
    order: Order = one_forward_one_backward
    frozen: frozenset[str] = frozenset()
    absent: frozenset[tuple[str, int]] = frozenset()
    loading: frozenset[int] = frozenset()

    def warmup(self, stage: int) -> int:
        """Return the forwards of a stage before its first backward under 1F1B."""
        position = self.graph.stages[stage].position
        return num_warmup_microbatches(position, self.graph.total_stages, self.num_microbatches)

    def steps(self, stage: int) -> tuple[Step, ...]:
        """Return the computations of a stage, in order."""
        return _steps(self)[stage]

    def actions(self, stage: int) -> tuple[Action, ...]:
        """Return all actions of a stage, in order."""
        return tuple(_stage_actions(self, stage))

    def all_actions(self) -> tuple[tuple[Action, ...], ...]:
        """Return the actions of every stage, by its index."""
        return tuple(self.actions(stage.index) for stage in self.graph.stages)

    @property
    def work(self) -> Work:
        """The computations of the stages and the messages of the edges."""
        return _work(self)

    def in_flight(self, stage: int) -> int:
        """Return the most micro-batches whose activations a stage stores for backward at a time.

        A stage without a backward stores those of the one that it computes.
        """
        stored = most = 0
        backward = self.work.backward[stage]
        for kind, microbatch in self.steps(stage):
            if kind == "backward":
                stored -= 1
            else:
                most = max(most, stored + 1)
                stored += bool(backward[microbatch])
        return most


@lru_cache(maxsize=64)
def _work(schedule: Schedule) -> Work:
    return work_of(schedule.graph, schedule.num_microbatches, schedule.frozen, schedule.absent)


@lru_cache(maxsize=64)
def _steps(schedule: Schedule) -> tuple[tuple[Step, ...], ...]:
    """Return the steps of every stage, without those that have nothing to compute."""
    work = schedule.work
    everything = bool(work.forward.all() and work.backward.all())
    at_position: dict[int, tuple[Step, ...]] = {}
    found = []
    for stage in schedule.graph.stages:
        if stage.position not in at_position:
            at_position[stage.position] = _ordered(schedule, stage.position)
        steps = at_position[stage.position]
        if not everything:
            todo = {
                "forward": work.forward[stage.index].tolist(),
                "backward": work.backward[stage.index].tolist(),
            }
            steps = tuple(step for step in steps if todo[step[0]][step[1]])
        found.append(steps)
    return tuple(found)


def _ordered(schedule: Schedule, position: int) -> tuple[Step, ...]:
    """Return the steps of the order at a position, after checking that they are complete."""
    count = schedule.num_microbatches
    steps = tuple(schedule.order(position, schedule.graph.total_stages, count))
    wanted = _every_step(count)
    if len(steps) == len(wanted) and wanted.issuperset(steps) and len(set(steps)) == len(steps):
        return steps
    times = Counter(steps)
    strange = [step for step in times if step not in wanted]
    kind, microbatch = (strange or [step for step in sorted(wanted) if times[step] != 1])[0]
    fault = (
        "there is none" if strange else f"it must do so once, not {times[kind, microbatch]} times"
    )
    raise ScheduleError(
        f"The order at position {position} has the {kind} of micro-batch {microbatch}, but {fault}."
    )


@lru_cache(maxsize=8)
def _every_step(num_microbatches: int) -> frozenset[Step]:
    kinds: tuple[ComputeKind, ...] = ("forward", "backward")
    return frozenset((kind, m) for kind in kinds for m in range(num_microbatches))


def _stage_actions(schedule: Schedule, stage: int) -> Iterator[Action]:
    graph, work = schedule.graph, schedule.work
    incoming, outgoing = graph.incoming[stage], graph.outgoing[stage]
    forward, backward = work.carry_forward, work.carry_backward
    receives = {
        "forward": _messages(StepKind.RECEIVE_FORWARD, stage, incoming, forward),
        "backward": _messages(StepKind.RECEIVE_BACKWARD, stage, outgoing, backward),
    }
    sends = {
        "forward": _messages(StepKind.SEND_FORWARD, stage, outgoing, forward),
        "backward": _messages(StepKind.SEND_BACKWARD, stage, incoming, backward),
    }
    loads = stage in schedule.loading
    for kind, microbatch in schedule.steps(stage):
        if loads and kind == "forward":
            yield Action(StepKind.LOAD, stage, microbatch)
        yield from receives[kind][microbatch]
        compute = StepKind.FORWARD if kind == "forward" else StepKind.BACKWARD
        yield Action(compute, stage, microbatch)
        yield from sends[kind][microbatch]
    if graph.stages[stage].module not in schedule.frozen:
        yield Action(StepKind.GRAD_SYNC, stage)
    yield Action(StepKind.OPTIMIZER, stage)


def _messages(
    kind: StepKind, stage: int, edges: tuple[StageEdge, ...], carried: Flags
) -> list[list[Action]]:
    """Return, by micro-batch, the messages that a stage sends or receives over the edges."""
    ends = [
        (edge, edge.destination if edge.source == stage else edge.source, carried[edge.index])
        for edge in edges
    ]
    return [
        [
            Action(kind, stage, microbatch, edge.index, peer, edge.modality)
            for edge, peer, flags in ends
            if flags[microbatch]
        ]
        for microbatch in range(carried.shape[1])
    ]
