"""Makes a schedule and checks it before anything runs."""

from __future__ import annotations

from collections.abc import Collection

from mimokit.planning.schedule.actions import Order
from mimokit.planning.schedule.check import check_actions
from mimokit.planning.schedule.graph import StageGraph
from mimokit.planning.schedule.orders import one_forward_one_backward
from mimokit.planning.schedule.schedule import Schedule
from mimokit.planning.schedule.tasks import task_graph


def plan_schedule(
    graph: StageGraph,
    num_microbatches: int,
    order: Order = one_forward_one_backward,
    *,
    frozen: Collection[str] = (),
    absent: Collection[tuple[str, int]] = (),
    loading: Collection[int] | None = None,
    check: bool = True,
) -> Schedule:
    """Return a checked schedule: every message arrives and no stage waits indefinitely.

    Args:
        graph: the stages, from `stage_graph`.
        num_microbatches: micro-batches per optimizer step.
        order: one of `mimokit.planning.schedule.orders`, or your own function.
        frozen: modules of which nothing is trained.
        absent: (module, micro-batch) pairs for which a module has no input.
        loading: indices of the stages that read data; None: first and last stages of the graph.
        check: False skips the check; a search over known orders needs none.

    Raises:
        ScheduleError: the order leaves work out or repeats it, or the check fails.
        ValueError: no micro-batch, or an unknown module, micro-batch or stage.
    """
    modules = {name for name, _ in graph.topology}
    if num_microbatches < 1:
        raise ValueError(f"num_microbatches is {num_microbatches}; it must be at least 1")
    unknown = sorted(set(frozen) - modules | {name for name, _ in absent} - modules)
    if unknown:
        raise ValueError(f"'{unknown[0]}' is not one of {', '.join(sorted(modules))}")
    beyond = [m for _, m in absent if not 0 <= m < num_microbatches]
    if beyond:
        raise ValueError(f"micro-batch {beyond[0]} is not one of 0 to {num_microbatches - 1}")
    if loading is None:
        loading = _ends(graph)
    schedule = Schedule(
        graph, num_microbatches, order, frozenset(frozen), frozenset(absent), frozenset(loading)
    )
    if check:
        check_schedule(schedule)
    return schedule


def check_schedule(schedule: Schedule) -> None:
    """Reject a schedule that would mix messages up or wait indefinitely.

    It reads the tables that actions are made from, and the actions themselves only to describe a
    fault: a thousand micro-batches take milliseconds.

    Raises:
        ScheduleError: as `check_actions`.
    """
    tasks = task_graph(schedule)
    if tasks.faulty:
        check_actions(schedule.all_actions())


def _ends(graph: StageGraph) -> frozenset[int]:
    """Return the stages that no stage feeds (they read inputs) or that feed none (labels)."""
    return frozenset(
        stage.index
        for stage in graph.stages
        if not graph.incoming[stage.index] or not graph.outgoing[stage.index]
    )
