"""A pipeline schedule: graph, order and micro-batches; its actions are computed on request."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, product
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from mimokit.planning.schedule.actions import Action, Order, ScheduleError, Step
from mimokit.planning.schedule.graph import StageEdge, StageGraph
from mimokit.planning.schedule.orders import num_warmup_microbatches, one_forward_one_backward
from mimokit.step_kinds import BRIDGES, COMPUTATIONS, StepKind

Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Work:
    """Whether a stage computes, and whether an edge carries a message, in a micro-batch.

    Attributes:
        forward: [stages, micro-batches].
        backward: [stages, micro-batches].
        weights: [stages, micro-batches]; whether its backward has gradients of weights.
        carry_forward: [edges, micro-batches].
        carry_backward: [edges, micro-batches].
    """

    forward: Flags
    backward: Flags
    weights: Flags
    carry_forward: Flags
    carry_backward: Flags


def work_of(
    graph: StageGraph,
    num_microbatches: int,
    frozen: Collection[str],
    absent: Collection[tuple[str, int]],
) -> Work:
    """Return what all stages compute and what all edges carry.

    A module has a forward in every micro-batch except those in which it is absent. It has a
    backward if it or a module before it is trained, and if a gradient reaches it.
    """
    order = [name for name, _ in graph.topology]
    fed = dict(graph.topology)
    present = {name: np.ones(num_microbatches, dtype=np.bool_) for name in order}
    for name, microbatch in absent:
        present[name][microbatch] = False
    trained = {name: name not in frozen for name in order}
    for name in order:
        for target in fed[name]:
            trained[target] |= trained[name]
    gradient: dict[str, Flags] = {}
    for name in reversed(order):
        reached = np.full(num_microbatches, not fed[name])
        for target in fed[name]:
            reached |= gradient[target]
        gradient[name] = present[name] & trained[name] & reached
    modules = [stage.module for stage in graph.stages]
    ends = [(modules[edge.source], modules[edge.destination]) for edge in graph.edges]
    shape = (len(ends), num_microbatches)
    return Work(
        forward=np.array([present[name] for name in modules]),
        backward=np.array([gradient[name] for name in modules]),
        weights=np.array([gradient[name] & (name not in frozen) for name in modules]),
        carry_forward=np.array([present[a] & present[b] for a, b in ends]).reshape(shape),
        carry_backward=np.array([gradient[a] & gradient[b] for a, b in ends]).reshape(shape),
    )


@dataclass(frozen=True)
class Schedule:
    """The actions of every stage in order. It stays small: actions are computed on request.

    Attributes:
        frozen: modules of which nothing is trained. If nothing before them is trained either, they
            have no backward and receive no gradients.
        absent: (module, micro-batch) pairs for which a module has no input: it neither computes
            nor sends, and no stage waits for it.
    """

    graph: StageGraph
    num_microbatches: int
    order: Order = one_forward_one_backward
    frozen: frozenset[str] = frozenset()
    absent: frozenset[tuple[str, int]] = frozenset()
    loading: frozenset[int] = frozenset()

    def warmup(self, stage: int) -> int:
        """Return the forwards of a stage before it alternates; those before any backward of its
        ranks, where the order is not 1F1B.
        """
        if self.order != one_forward_one_backward:
            kinds = [kind for kind, _, _ in self.ordered(self.graph.worker_of[stage])]
            if StepKind.BACKWARD not in kinds:
                return kinds.count(StepKind.FORWARD)
            return kinds[: kinds.index(StepKind.BACKWARD)].count(StepKind.FORWARD)
        position = self.graph.stages[stage].position
        return num_warmup_microbatches(position, self.graph.total_stages, self.num_microbatches)

    def steps(self, stage: int) -> tuple[tuple[StepKind, int], ...]:
        """Return the computations of a stage, in order: kind, micro-batch."""
        steps = self.ordered(self.graph.worker_of[stage])
        return tuple(
            (kind, m) for kind, place, m in steps if place == stage and kind in COMPUTATIONS
        )

    def ordered(self, worker: int) -> tuple[Step, ...]:
        """Return the steps of an entry of `graph.workers`, in order, without messages."""
        return self.orders[worker]

    @property
    def orders(self) -> tuple[tuple[Step, ...], ...]:
        """The same of every entry."""
        return _steps(self)

    def actions(self, worker: int) -> tuple[Action, ...]:
        """Return all actions of an entry of `graph.workers`, in order."""
        return tuple(_actions(self, worker))

    def all_actions(self) -> tuple[tuple[Action, ...], ...]:
        """Return the actions of every entry of `graph.workers`."""
        return tuple(self.actions(worker) for worker in range(len(self.graph.workers)))

    @cached_property
    def split(self) -> frozenset[int]:
        """The stages that compute gradients of weights apart from those of inputs."""
        kinds = set(map(itemgetter(0, 1), chain.from_iterable(self.orders)))
        apart = (stage for kind, stage in kinds if kind == StepKind.WEIGHT_GRADIENT)
        return frozenset(stage for stage in apart if stage is not None)

    @property
    def work(self) -> Work:
        """The computations of the stages and the messages of the edges."""
        return _work(self)

    def in_flight(self, stage: int) -> int:
        """Return the most micro-batches whose activations a stage stores for backward at a time.

        A stage without a backward stores those of the one that it computes. Gradients of weights
        that are computed later need them until then.
        """
        stored = most = 0
        backward, weights = self.work.backward[stage], self.work.weights[stage]
        for kind, microbatch in self.steps(stage):
            if kind == StepKind.BACKWARD and stage in self.split and weights[microbatch]:
                continue
            if kind != StepKind.FORWARD:
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
    work, outgoing = schedule.work, schedule.graph.outgoing
    everything = bool(work.forward.all() and work.weights.all())
    ordered = [_ordered(schedule, worker) for worker in range(len(schedule.graph.workers))]
    if everything:
        return tuple(ordered)
    tables = {
        StepKind.FORWARD: work.forward.tolist(),
        StepKind.BACKWARD: work.backward.tolist(),
        StepKind.WEIGHT_GRADIENT: work.weights.tolist(),
        StepKind.GATHER: [work.carry_forward[[e.index for e in out]].any(0) for out in outgoing],
        StepKind.SCATTER: [work.carry_backward[[e.index for e in out]].any(0) for out in outgoing],
    }
    return tuple(
        tuple(
            (kind, stage, m)
            for kind, stage, m in steps
            if stage is None or kind not in tables or tables[kind][stage][m]
        )
        for steps in ordered
    )


def _ordered(schedule: Schedule, worker: int) -> tuple[Step, ...]:
    count, stages = schedule.num_microbatches, schedule.graph.workers[worker]
    steps = tuple(schedule.order(schedule.graph, worker, count))
    computed = [step for step in steps if step[0] in COMPUTATIONS]
    split = {stage for kind, stage, _ in computed if kind == StepKind.WEIGHT_GRADIENT}
    kinds = {stage: COMPUTATIONS if stage in split else COMPUTATIONS[:2] for stage in stages}
    wanted = {step for s in stages for step in product(kinds[s], (s,), range(count))}
    if len(computed) == len(wanted) and set(computed) == wanted:
        return steps
    times = Counter(computed)
    strange = [step for step in times if step not in wanted]
    missing = [step for step in sorted(wanted) if times[step] != 1]
    kind, stage, microbatch = (strange or missing)[0]
    fault = (
        "there is none"
        if strange
        else f"it must do so once, not {times[kind, stage, microbatch]} times"
    )
    raise ScheduleError(
        f"The order of stage {stage} has the {kind} of micro-batch {microbatch}, but {fault}."
    )


_MESSAGES = {
    StepKind.FORWARD: (StepKind.RECEIVE_FORWARD, StepKind.SEND_FORWARD),
    StepKind.BACKWARD: (StepKind.RECEIVE_BACKWARD, StepKind.SEND_BACKWARD),
}


def _actions(schedule: Schedule, worker: int) -> Iterator[Action]:
    graph, stages = schedule.graph, schedule.graph.workers[worker]
    incoming = {s: [e for e in graph.incoming[s] if e.index not in graph.bridged] for s in stages}
    outgoing = {s: [e for e in graph.outgoing[s] if e.index not in graph.bridged] for s in stages}
    forward, backward = schedule.work.carry_forward.tolist(), schedule.work.carry_backward.tolist()
    for kind, stage, microbatch in schedule.ordered(worker):
        if stage is None or kind not in (*BRIDGES, *_MESSAGES):
            yield Action(kind, stage, microbatch)
        elif kind in BRIDGES:
            for edge in graph.outgoing[stage]:  # all of them lead to the same ranks
                yield _message(kind, stage, microbatch, edge)
        else:
            before, after, carried = incoming[stage], outgoing[stage], forward
            if kind == StepKind.BACKWARD:
                before, after, carried = after, before, backward
            elif stage in schedule.loading:
                yield Action(StepKind.LOAD, stage, microbatch)
            receive, send = _MESSAGES[kind]
            for edge in before:
                if carried[edge.index][microbatch]:
                    yield _message(receive, stage, microbatch, edge)
            yield Action(kind, stage, microbatch)
            for edge in after:
                if carried[edge.index][microbatch]:
                    yield _message(send, stage, microbatch, edge)
    whole = stages[0] if len(stages) == 1 else None
    if any(graph.stages[stage].module not in schedule.frozen for stage in stages):
        yield Action(StepKind.GRAD_SYNC, whole)
    yield Action(StepKind.OPTIMIZER, whole)


def _message(kind: StepKind, stage: int, microbatch: int, edge: StageEdge) -> Action:
    peer = edge.destination if edge.source == stage else edge.source
    return Action(kind, stage, microbatch, edge.index, peer, edge.modality)
