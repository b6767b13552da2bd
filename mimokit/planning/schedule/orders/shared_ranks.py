"""The order of modules that share all ranks, of which none is cut into stages.

One micro-batch follows the other. A rank reads one batch for all its modules and cuts out the
samples that it computes of each. Between two modules a bridge brings the output of one to the
ranks that need it, and its gradient back. The graph is cut there, so that forward and backward of
each module are separate steps, which can be timed, stepped through and shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mimokit.planning.schedule.actions import Step
from mimokit.planning.schedule.graph import StageGraph
from mimokit.step_kinds import StepKind


def shared_ranks(graph: StageGraph, worker: int, num_microbatches: int) -> Sequence[Step]:
    """Return load, slice, encoders, language model with its loss and backward, encoders back."""
    feeding = [stage for stage in graph.workers[worker] if graph.outgoing[stage]]
    ending = [stage for stage in graph.workers[worker] if not graph.outgoing[stage]]
    return [
        step
        for microbatch in range(num_microbatches)
        for step in _microbatch(feeding, ending, microbatch)
    ]


def _microbatch(feeding: list[int], ending: list[int], microbatch: int) -> Iterator[Step]:
    yield StepKind.LOAD, None, microbatch
    yield StepKind.SLICE, None, microbatch
    for stage in feeding:
        yield StepKind.FORWARD, stage, microbatch
        yield StepKind.GATHER, stage, microbatch
    for stage in ending:
        yield StepKind.FORWARD, stage, microbatch
        yield StepKind.LOSS, stage, microbatch
        yield StepKind.BACKWARD, stage, microbatch
    for stage in feeding:
        yield StepKind.SCATTER, stage, microbatch
        yield StepKind.BACKWARD, stage, microbatch
