"""The orders in which ranks compute: GPipe, 1F1B, interleaved, and that of shared ranks.

An order is a function of (graph, set of ranks, micro-batches) that returns the steps of one entry
of `StageGraph.workers`, in order: (kind, stage, micro-batch). Every forward and every backward of
the worker's stages is in it once. `Schedule` leaves out what there is nothing to do for, and adds
the messages between ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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


def interleaved(graph: StageGraph, worker: int, num_microbatches: int) -> Sequence[Step]:
    """Return the order of ranks with several stages of one module, or of an encoder before them.

    The order is Megatron's (arXiv 2104.04473, section 2.2): micro-batches come in rounds, one
    micro-batch per set of ranks, each round through all stages of a rank; after
    `2 (p - 1 - place) + (v - 1) p` forwards a rank alternates, for p sets of v stages each. An
    encoder computes in the order in which the first of the several stages does, ahead of it by a
    forward for every stage in between.

    The stages of the interleaved module and the micro-batches are multiples of its ranks.
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
