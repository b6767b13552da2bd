"""The result of a simulation: times of each action, and idle time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mimokit.planning.schedule.actions import Action
from mimokit.step_kinds import COMPUTATIONS, StepKind

if TYPE_CHECKING:
    from mimokit.planning.schedule.schedule import Schedule
    from mimokit.planning.schedule.tasks import Tasks

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """An action on the clock, `[start, stop)` in the unit of the simulated times."""

    action: Action
    start: float
    stop: float


@dataclass(frozen=True, eq=False)
class Timeline:
    """A simulated schedule; times are in the unit that `simulate` was given."""

    schedule: Schedule
    tasks: Tasks
    start: Times
    stop: Times
    grad_sync: Times
    optimizer: Times

    @cached_property
    def pipeline_makespan(self) -> float:
        """When the last computation ends."""
        return float(self.stop.max(initial=0.0))

    @cached_property
    def makespan(self) -> float:
        """When the last optimizer ends: the time of one step."""
        return self._synced + float(self.optimizer.max())

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """By stage: the time in which it computes."""
        computing = ~self.tasks.transfer
        spent = (self.stop - self.start)[computing]
        stages = len(self.schedule.graph.stages)
        totals = np.bincount(self.tasks.place[computing], weights=spent, minlength=stages)
        return tuple(totals.tolist())

    @cached_property
    def bubble(self) -> tuple[float, ...]:
        """By stage: the fraction of `pipeline_makespan` in which its ranks do not compute.

        (p - 1) / (m + p - 1) for p equal stages, m micro-batches and no transfer time.
        """
        whole = self.pipeline_makespan
        graph = self.schedule.graph
        of_worker = [sum(self.busy[stage] for stage in stages) for stages in graph.workers]
        busy = [of_worker[graph.worker_of[stage.index]] for stage in graph.stages]
        return tuple((whole - each) / whole if whole else 0.0 for each in busy)

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """By stage: the most micro-batches whose activations it stores at a time."""
        return tuple(self.schedule.in_flight(stage.index) for stage in self.schedule.graph.stages)

    def intervals(self, worker: int) -> tuple[Interval, ...]:
        """Return the actions of an entry of `graph.workers`, in the order of the schedule.

        A send and its receive have the times of the message, as have both ends of a bridge;
        reading, cutting out samples and the loss take no time.
        """
        return tuple(self._on_clock(worker))

    def _on_clock(self, worker: int) -> Iterator[Interval]:
        now, stages = 0.0, list(self.schedule.graph.workers[worker])
        for action in self.schedule.actions(worker):
            if action.kind in (StepKind.LOAD, StepKind.SLICE, StepKind.LOSS):
                yield Interval(action, now, now)
            elif action.kind == StepKind.GRAD_SYNC:
                yield Interval(action, now, now + float(self.grad_sync[stages].sum()))
            elif action.kind == StepKind.OPTIMIZER:
                begin = self._synced
                yield Interval(action, begin, begin + float(self.optimizer[stages].sum()))
            else:
                assert action.microbatch is not None, "work belongs to a micro-batch"
                transfer = action.edge is not None
                place = action.stage if action.edge is None else action.edge
                assert place is not None, "a stage or an edge takes time"
                task = self._task_at[transfer, place, _kind(action), action.microbatch]
                yield Interval(action, float(self.start[task]), float(self.stop[task]))
                now = now if transfer else float(self.stop[task])

    @cached_property
    def _synced(self) -> float:
        ends = np.zeros(len(self.grad_sync))
        computing = ~self.tasks.transfer
        np.maximum.at(ends, self.tasks.place[computing], self.stop[computing])
        trained = [stage.module not in self.schedule.frozen for stage in self.schedule.graph.stages]
        return float((ends + np.where(trained, self.grad_sync, 0.0)).max())

    @cached_property
    def _task_at(self) -> dict[tuple[bool, int, int, int], int]:
        """(transfer, place, kind, micro-batch) -> task."""
        tasks = self.tasks
        columns = (tasks.transfer, tasks.place, tasks.kind, tasks.microbatch)
        keys = zip(*(column.tolist() for column in columns), strict=True)
        return {key: number for number, key in enumerate(keys)}


def _kind(action: Action) -> int:
    if action.kind in COMPUTATIONS:
        return COMPUTATIONS.index(action.kind)
    return int(action.kind == StepKind.SCATTER or action.kind.endswith("backward"))
