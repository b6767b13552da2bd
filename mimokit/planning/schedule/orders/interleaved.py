"""The interleaved order, in which a rank has several stages of one module.

The order is Megatron's (arXiv 2104.04473, section 2.2): micro-batches come in rounds, one
micro-batch per rank of the pipeline, each round through all stages of a rank; after
`2 (p - 1 - rank) + (v - 1) p` forwards a rank alternates, for p ranks of v stages each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mimokit.planning.schedule.actions import Step
from mimokit.planning.schedule.graph import StageGraph
from mimokit.step_kinds import StepKind


def interleaved(graph: StageGraph, worker: int, num_microbatches: int) -> Sequence[Step]:
    """Return the order of a rank with several stages, or of an encoder's stage before such ranks.

    An encoder computes in the order in which the first of the several stages does, ahead of it by
    a forward for every stage in between.

    Args:
        graph: the stages; those of the interleaved module are a multiple of its ranks.
        worker: the ranks.
        num_microbatches: a multiple of the ranks of the interleaved pipeline.
    """
    stages = graph.workers[worker]
    if len(stages) > 1:
        return list(_rounds(graph, stages, num_microbatches))
    first = next(each for each in graph.workers if len(each) > 1)
    steps = [s for s in _rounds(graph, first, num_microbatches) if s[1] == first[0]]
    (stage,) = stages
    ahead = graph.stages[first[0]].position - graph.stages[stage].position
    return list(_earlier([kind for kind, _, _ in steps], stage, ahead))


def _rounds(graph: StageGraph, stages: tuple[int, ...], num_microbatches: int) -> Iterator[Step]:
    module = graph.stages[stages[0]].module
    chunks = len(stages)
    ranks = sum(stage.module == module for stage in graph.stages) // chunks
    place = graph.stages[stages[0]].place
    whole = num_microbatches * chunks
    warmup = min(whole, 2 * (ranks - 1 - place) + (chunks - 1) * ranks)

    def step(kind: StepKind, number: int) -> Step:
        turn, within = divmod(number, ranks * chunks)
        chunk, offset = divmod(within, ranks)
        chunk = chunks - 1 - chunk if kind == StepKind.BACKWARD else chunk
        return kind, stages[chunk], turn * ranks + offset

    for number in range(warmup):
        yield step(StepKind.FORWARD, number)
    for number in range(whole - warmup):
        yield step(StepKind.FORWARD, warmup + number)
        yield step(StepKind.BACKWARD, number)
    for number in range(whole - warmup, whole):
        yield step(StepKind.BACKWARD, number)


def _earlier(kinds: Sequence[StepKind], stage: int, ahead: int) -> Iterator[Step]:
    """Yield the steps of a stage whose forwards come `ahead` earlier than in `kinds`."""
    forwards = backwards = 0
    count = kinds.count(StepKind.FORWARD)
    for kind in (*[StepKind.FORWARD] * ahead, *kinds):
        if kind == StepKind.BACKWARD:
            yield kind, stage, backwards
            backwards += 1
        elif forwards < count:
            yield kind, stage, forwards
            forwards += 1
