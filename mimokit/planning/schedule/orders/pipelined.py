"""Orders of pipelines in which a rank has one stage: GPipe and 1F1B."""

from __future__ import annotations

from collections.abc import Sequence

from mimokit.planning.schedule.actions import Step
from mimokit.planning.schedule.graph import StageGraph
from mimokit.step_kinds import StepKind


def num_warmup_microbatches(position: int, total_stages: int, num_microbatches: int) -> int:
    """Return the forwards of a stage before it alternates: one per stage that follows.

    `total_stages - position - 1`, at most all micro-batches (Narayanan et al. 2021,
    arXiv 2104.04473, section 2.2; over a graph the position is counted on the longest path, as
    megatron-core does).
    """
    return min(total_stages - position - 1, num_microbatches)


def gpipe(graph: StageGraph, worker: int, num_microbatches: int) -> Sequence[Step]:
    """Return all forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965)."""
    return [
        (kind, stage, microbatch)
        for kind in (StepKind.FORWARD, StepKind.BACKWARD)
        for stage in graph.workers[worker][:: 1 if kind == StepKind.FORWARD else -1]
        for microbatch in range(num_microbatches)
    ]


def one_forward_one_backward(
    graph: StageGraph, worker: int, num_microbatches: int
) -> Sequence[Step]:
    """Return 1F1B: warm-up forwards, then forward and backward in turn, then the backwards left.

    At most warm-up + 1 micro-batches are in flight at a time.
    """
    (stage,) = graph.workers[worker]
    position = graph.stages[stage].position
    warmup = num_warmup_microbatches(position, graph.total_stages, num_microbatches)
    steps: list[Step] = [(StepKind.FORWARD, stage, m) for m in range(warmup)]
    for m in range(num_microbatches - warmup):
        steps.append((StepKind.FORWARD, stage, warmup + m))
        steps.append((StepKind.BACKWARD, stage, m))
    first_left = num_microbatches - warmup
    steps += [(StepKind.BACKWARD, stage, m) for m in range(first_left, num_microbatches)]
    return steps
