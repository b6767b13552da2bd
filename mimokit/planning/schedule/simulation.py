"""Puts a schedule on a clock.

A computation begins when the one before it on its stage has ended and its messages have arrived.
A message leaves when it has been computed and the one before it on the same edge in the same
direction has arrived; it takes no time of the stages. The only other actions that take time are the
gradient sync, after the last backward of a stage, and the optimizer, after all gradient syncs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mimokit.planning.schedule.check import checked_run
from mimokit.planning.schedule.run import ScheduleRun
from mimokit.planning.schedule.schedule import Schedule
from mimokit.planning.schedule.tasks import Tasks
from mimokit.planning.schedule.timeline import Timeline

Seconds = float | Sequence[float] | NDArray[np.float64]
"""One time for all, one per stage (per edge), or an array [..., stages (edges), micro-batches]."""

FORWARD_UNITS = 1.0
BACKWARD_UNITS = 2.0
"""A backward computes the gradients of inputs and of weights: two matrix products for one."""

WEIGHT_SHARE = 0.5
"""Of a backward, in the gradients of weights: one of the two products."""


def simulate(
    schedule: Schedule,
    forward: Seconds = FORWARD_UNITS,
    backward: Seconds = BACKWARD_UNITS,
    transfer: Seconds = 0.0,
    transfer_backward: Seconds | None = None,
    *,
    weight_gradient: Seconds | None = None,
    grad_sync: float | Sequence[float] = 0.0,
    optimizer: float | Sequence[float] = 0.0,
) -> Timeline:
    """Return when every action begins and ends.

    All times have one unit of the caller's choice, for example seconds.

    Args:
        forward, backward: one number, one per stage, or [stages, micro-batches].
        transfer: of activations over an edge of `schedule.graph.edges`: one number, one per edge,
            or [edges, micro-batches].
        transfer_backward: of gradients; None: as long as activations.
        weight_gradient: as forward; the part of a backward that is computed apart from it, if the
            order of the schedule has it apart; None: half of it.
        grad_sync, optimizer: one number or one per stage.

    Raises:
        ScheduleError: the schedule fails its check.
        ValueError: times that are negative, not finite or of another shape.
    """
    times = _Times(forward, backward, weight_gradient, transfer, transfer_backward)
    run = times.run(schedule)
    if np.ndim(run.end):
        raise ValueError("simulate takes one set of times; makespan takes many at once")
    *columns, start, stop = np.array([*run.tasks()], dtype=np.float64).reshape(-1, 6).T
    place, microbatch, kind, sent = (column.astype(np.int64) for column in columns)
    return Timeline(
        schedule=schedule,
        tasks=Tasks(place, microbatch, kind, sent.astype(np.bool_)),
        start=start,
        stop=stop,
        grad_sync=_per_stage(schedule, grad_sync, "grad_sync"),
        optimizer=_per_stage(schedule, optimizer, "optimizer"),
    )


def makespan(
    schedule: Schedule,
    forward: Seconds = FORWARD_UNITS,
    backward: Seconds = BACKWARD_UNITS,
    transfer: Seconds = 0.0,
    transfer_backward: Seconds | None = None,
    *,
    weight_gradient: Seconds | None = None,
) -> NDArray[np.float64]:
    """Return when the last computation ends, for one or for many sets of times at once.

    Arguments are those of `simulate`, or arrays [..., stages (edges), micro-batches]; an axis of
    length 1 stands for all. Leading axes are sets of times: [candidates, stages, 1].

    Returns:
        [...], the leading axes; without any, `float()` accepts it.

    Raises:
        ScheduleError, ValueError: as `simulate`.
    """
    times = _Times(forward, backward, weight_gradient, transfer, transfer_backward)
    return np.array(times.run(schedule).end)


@dataclass(frozen=True)
class _Times:
    forward: Seconds
    backward: Seconds
    weight_gradient: Seconds | None
    transfer: Seconds
    transfer_backward: Seconds | None

    def run(self, schedule: Schedule) -> ScheduleRun:
        """Run a schedule, for all sets of times at once."""
        stages, edges = len(schedule.graph.stages), len(schedule.graph.edges)
        over = self.transfer if self.transfer_backward is None else self.transfer_backward
        backward = _table(schedule, "backward", self.backward, stages)
        computing = [_table(schedule, "forward", self.forward, stages), backward]
        sending = [
            _table(schedule, "transfer", self.transfer, edges),
            _table(schedule, "transfer_backward", over, edges),
        ]
        if schedule.split:
            apart = WEIGHT_SHARE * backward
            if self.weight_gradient is not None:
                apart = _table(schedule, "weight_gradient", self.weight_gradient, stages)
            split = schedule.work.weights & np.isin(range(stages), list(schedule.split))[:, None]
            left = backward - np.where(split, apart, 0.0)
            if (left < 0).any():
                raise ValueError("weight_gradient is a part of backward, and longer than it")
            computing = [computing[0], left, apart]
        sets = np.broadcast_shapes(*(table.shape[:-2] for table in (*computing, *sending)))
        if not sets:
            lists = ([table.tolist() for table in part] for part in (computing, sending))
            return checked_run(schedule, *lists)
        arrays = (
            [
                np.moveaxis(np.broadcast_to(table, (*sets, *table.shape[-2:])), (-2, -1), (0, 1))
                for table in part
            ]
            for part in (computing, sending)
        )
        return checked_run(schedule, *arrays, later=np.maximum)


def _table(schedule: Schedule, name: str, times: Seconds, places: int) -> NDArray[np.float64]:
    """Return times as [..., places, micro-batches]."""
    values = np.asarray(times, dtype=np.float64)
    if not (values.min(initial=0.0) >= 0 and values.max(initial=0.0) < np.inf):
        raise ValueError(f"{name} must be finite times of 0 or more")
    if values.ndim == 1:
        values = values[:, None]
    count = schedule.num_microbatches
    shape = (*values.shape[:-2], places, count)
    try:
        return np.broadcast_to(values, shape)
    except ValueError:
        raise ValueError(
            f"{name} is of shape {np.shape(times)}; give one number, {places} numbers, or an array "
            f"[..., {places}, {count}]"
        ) from None


def _per_stage(
    schedule: Schedule, times: float | Sequence[float], name: str
) -> NDArray[np.float64]:
    return _table(schedule, name, times, len(schedule.graph.stages))[..., 0]


@lru_cache(maxsize=8)
def unit_timeline(schedule: Schedule) -> Timeline:
    """Return a schedule on a clock on which a forward takes 1, a backward 2, a transfer 0."""
    return simulate(schedule)
