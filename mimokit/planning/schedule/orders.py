"""The orders in which ranks compute: GPipe, 1F1B, ZB-H1, and that of shared ranks.

An order is a function of (graph, set of ranks, micro-batches) that returns the steps of one entry
of `StageGraph.workers`, in order: (kind, stage, micro-batch). Every forward and every backward of
the worker's stages is in it once, and where an order has gradients of weights apart, each of these.
`Schedule` leaves out what there is nothing to do for, and adds the messages between ranks. The
interleaved order of several stages on the same ranks is in `interleaved.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from mimokit.planning.schedule.actions import Order, Step
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


def zero_bubble(graph: StageGraph, worker: int, num_microbatches: int) -> Sequence[Step]:
    """Return ZB-H1: 1F1B whose backwards leave out the gradients of weights, which come later.

    Each stage computes them as many backwards later as there are stages in front of it, so that no
    stage stores more micro-batches than the first one does under 1F1B; those that are left fill the
    time in which it would wait at the end (Qi et al. 2023, arXiv 2401.10241, section 2.1).
    """
    (stage,) = graph.workers[worker]
    later = graph.stages[stage].position
    steps: list[Step] = []
    for kind, _, microbatch in one_forward_one_backward(graph, worker, num_microbatches):
        steps.append((kind, stage, microbatch))
        if kind == StepKind.BACKWARD and microbatch >= later:
            steps.append((StepKind.WEIGHT_GRADIENT, stage, microbatch - later))
    left = range(max(0, num_microbatches - later), num_microbatches)
    steps += [(StepKind.WEIGHT_GRADIENT, stage, microbatch) for microbatch in left]
    return steps


@dataclass(frozen=True)
class InGroups:
    """An order that ends for some micro-batches before it begins for the next.

    Attributes:
        size: micro-batches of a group; the last one may have fewer.
    """

    order: Order
    size: int

    def __call__(self, graph: StageGraph, worker: int, num_microbatches: int) -> Sequence[Step]:
        """Return the steps of a set of ranks."""
        return [
            (kind, stage, group.start + number)
            for group in _groups(num_microbatches, self.size)
            for kind, stage, number in self.order(graph, worker, len(group))
        ]


def _groups(num_microbatches: int, size: int) -> Iterator[range]:
    for start in range(0, num_microbatches, size):
        yield range(start, min(start + size, num_microbatches))


@dataclass(frozen=True)
class SharedOrder:
    """The order of ranks that compute encoders next to a language model, or to stages of it.

    Encoders compute forward a number of micro-batches; then the language model does all of its work
    on these, in an order of its own; then encoders compute backward. All micro-batches of a step at
    once are three phases (arXiv 2605.27678; Megatron-LM's pull request 4784). Of an encoder with
    several stages on the same ranks (chunks), each computes all of these micro-batches in turn, so
    that its pipeline fills and drains in the time of one chunk, if they are as many as its sets of
    ranks.

    Attributes:
        line: the order of the language model.
        passes: micro-batches for which encoders compute before the language model does.
        inside: encoders compute in each forward and backward of the first stage instead, as parts
            of it.
    """

    line: Order = one_forward_one_backward
    passes: int = 1
    inside: bool = False

    def __call__(self, graph: StageGraph, worker: int, num_microbatches: int) -> Sequence[Step]:
        """Return the steps of a set of ranks."""
        stages = graph.workers[worker]
        encoders = [stage for stage in stages if stage in graph.beside]
        lines = tuple(tuple(s for s in w if s not in graph.beside) for w in graph.workers)
        alone = replace(graph, workers=lines)
        if self.inside:
            steps = self.line(alone, worker, num_microbatches)
            return list(chain.from_iterable(_with_feeding(graph, step, encoders) for step in steps))
        ordered: list[Step] = []
        for group in _groups(num_microbatches, self.passes):
            ordered += _before(graph, encoders, group)
            for kind, stage, number in self.line(alone, worker, len(group)):
                ordered += _computed(graph, (kind, stage, group.start + number))
            ordered += _after(graph, encoders, group)
        return ordered


def _with_feeding(graph: StageGraph, step: Step, encoders: Sequence[int]) -> Iterator[Step]:
    kind, stage, microbatch = step
    fed = any(e.index in graph.bridged for e in graph.incoming[stage]) if stage is not None else 0
    if fed and kind == StepKind.FORWARD:
        yield from _before(graph, encoders, (microbatch,))
    yield from _computed(graph, step)
    if fed and kind == StepKind.BACKWARD:
        yield from _after(graph, encoders, (microbatch,))


def _before(
    graph: StageGraph, encoders: Sequence[int], microbatches: Sequence[int]
) -> Iterator[Step]:
    # Stage by stage: no chunk waits for one that comes later. Ranks with later stages of encoders
    # alone read nothing.
    if not encoders or any(graph.stages[stage].place == 0 for stage in encoders):
        for microbatch in microbatches:
            yield StepKind.LOAD, None, microbatch
            yield StepKind.SLICE, None, microbatch
    for stage in encoders:
        for microbatch in microbatches:
            yield StepKind.FORWARD, stage, microbatch
            if stage in graph.feeding:
                yield StepKind.GATHER, stage, microbatch


def _computed(graph: StageGraph, step: Step) -> Iterator[Step]:
    kind, stage, microbatch = step
    yield step
    if kind == StepKind.FORWARD and stage is not None and not graph.outgoing[stage]:
        yield StepKind.LOSS, stage, microbatch


def _after(
    graph: StageGraph, encoders: Sequence[int], microbatches: Sequence[int]
) -> Iterator[Step]:
    for stage in reversed(encoders):
        for microbatch in microbatches:
            if stage in graph.feeding:
                yield StepKind.SCATTER, stage, microbatch
            yield StepKind.BACKWARD, stage, microbatch
