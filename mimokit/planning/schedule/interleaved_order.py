"""The interleaved order of ranks with several stages (chunks) of a module, among other modules."""

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from mimokit.planning.schedule.actions import Step
from mimokit.planning.schedule.graph import StageGraph
from mimokit.step_kinds import StepKind

_PASSES = (StepKind.FORWARD, StepKind.BACKWARD)
_UNITS = (1, 2)
"""Of time, of all chunks of a set of ranks together: a backward is two matrix products for one."""


def interleaved(graph: StageGraph, worker: int, num_microbatches: int) -> Sequence[Step]:
    """Return the order of ranks with chunks of any modules, and of the modules around them.

    It is the order of a run: every set of ranks computes the next forward as soon as its inputs are
    there and `held_stages` allows it, else a backward whose gradients are there. Forwards of a set
    come in Megatron's order (arXiv 2104.04473, section 2.2): micro-batches in rounds, one per set
    of ranks of the module, each round through all chunks. What has run once in an order does not
    wait indefinitely. Of one module alone the order is Megatron's: after
    `2 (p - 1 - place) + (v - 1) p` forwards a rank alternates, for p sets of v chunks each; but
    where a gradient is there before the input of the next forward, it does not wait for that.
    """
    return _orders(graph, num_microbatches)[worker]


@lru_cache(maxsize=64)  # a search simulates the same pipeline in layouts of other sizes
def _orders(graph: StageGraph, num_microbatches: int) -> tuple[tuple[Step, ...], ...]:
    run = _Run(graph, num_microbatches)
    run.to_the_end()
    return tuple(map(tuple, run.steps))


def held_stages(graph: StageGraph) -> tuple[int, ...]:
    """Return how many forwards without their backward each set of ranks has at most.

    On the way to the end of the graph a module holds as many micro-batches as it has sets of ranks,
    with chunks twice as many; in between, the numbers are those of 1F1B and of Megatron.
    """
    chunks = {graph.stages[own[-1]].module: len(own) for own in graph.workers}
    sets = Counter(graph.stages[own[-1]].module for own in graph.workers)
    fed = {name: [t for t in targets if t in sets] for name, targets in graph.topology}
    through = {name: sets[name] * min(chunks[name], 2) for name in sets}
    before = dict.fromkeys(sets, 0)
    for name in (name for name, _ in graph.topology if name in sets):
        for target in fed[name]:
            before[target] = max(before[target], before[name] + through[name])
    longest = max(before[name] + through[name] for name in sets)
    held = []
    for own in graph.workers:
        name, place = graph.stages[own[0]].module, graph.stages[own[0]].place
        behind = chunks[name] * (longest - before[name] - through[name])
        later = sets[name] - 1 - place
        alone = later if chunks[name] == 1 else 2 * later + (chunks[name] - 1) * sets[name]
        held.append(alone + 1 + behind)
    return tuple(held)


class _Run:
    """All sets of ranks compute all micro-batches, event by event.

    Attributes:
        turns: set of ranks -> (micro-batches of a round, place in a round, stage) of its stages.
        forwards: set of ranks -> the stages of its forwards to come, the next one last.
        begun, done: forward and backward -> stage -> micro-batches; a stage takes them in turn.
        wakes: forward and backward -> stage -> the sets of ranks that may wait for it.
    """

    def __init__(self, graph: StageGraph, num_microbatches: int) -> None:
        self.graph = graph
        self.most = held_stages(graph)
        sets = Counter(graph.stages[own[-1]].module for own in graph.workers)
        of_stage = [(sets[stage.module], stage.place) for stage in graph.stages]
        self.turns = [[(*of_stage[s], s) for s in own] for own in graph.workers]
        turns = (((m // r, place, s) for r, place, s in own for m in range(num_microbatches))
                 for own in self.turns)  # fmt: skip
        self.forwards = [[s for *_, s in sorted(own, reverse=True)] for own in turns]
        self.steps: list[list[Step]] = [[] for _ in graph.workers]
        self.held = [0] * len(graph.workers)
        stages = range(len(graph.stages))
        self.begun, self.done = ([[0 for _ in stages] for _ in _PASSES] for _ in range(2))
        worker_of = {stage: worker for worker, own in enumerate(graph.workers) for stage in own}
        sources = [{e.source for e in edges} & worker_of.keys() for edges in graph.incoming]
        targets = [{e.destination for e in edges} & worker_of.keys() for edges in graph.outgoing]
        self.waits_for = sources, targets
        waiting = targets, sources
        self.wakes = [[{worker_of[s] for s in behind} for behind in each] for each in waiting]
        self.whole = math.lcm(*map(len, graph.workers))  # time that all chunks divide
        self.ends: list[tuple[int, int, int, int]] = []

    def to_the_end(self) -> None:
        idle, now = set(range(len(self.steps))), 0
        awake = idle.copy()
        while True:
            for worker in sorted(idle & awake):
                step = self._next(worker, self.held[worker] < self.most[worker])
                if step is not None:
                    self._begin(worker, *step, now)
                    idle.remove(worker)
            if not self.ends:
                beyond = ((self._next(worker, True), worker) for worker in idle)
                waiting = [(step, worker) for step, worker in beyond if step]
                if not waiting:
                    return
                # Limits of several modules hold each other: the oldest micro-batch goes on.
                step, worker = min(waiting, key=lambda each: self.begun[0][each[0][1]])
                self._begin(worker, *step, now)
                idle.remove(worker)
            now, awake = self.ends[0][0], set()
            while self.ends and self.ends[0][0] == now:
                _, worker, way, stage = heapq.heappop(self.ends)
                self.done[way][stage] += 1
                self.held[worker] -= way
                idle.add(worker)
                awake |= {worker} | self.wakes[way][stage]

    def _next(self, worker: int, has_room: bool) -> tuple[int, int] | None:
        """Return forward (0) or backward (1) and the stage of what a set of ranks computes next."""
        forwards = self.forwards[worker]
        # In Megatron's order, also where another one could begin already.
        if has_room and forwards and self._is_ready(0, forwards[-1]):
            return 0, forwards[-1]
        begun, forwarded = self.begun[1], self.done[0]
        ready = [
            (begun[stage] // each_round, -place, stage)
            for each_round, place, stage in self.turns[worker]
            if begun[stage] < forwarded[stage] and self._is_ready(1, stage)
        ]
        return (1, min(ready)[-1]) if ready else None

    def _is_ready(self, way: int, stage: int) -> bool:
        number, done = self.begun[way][stage], self.done[way]
        fewest = min(map(done.__getitem__, self.waits_for[way][stage]), default=math.inf)
        return fewest > number

    def _begin(self, worker: int, way: int, stage: int, now: int) -> None:
        self.steps[worker].append((_PASSES[way], stage, self.begun[way][stage]))
        self.begun[way][stage] += 1
        if way == 0:
            self.held[worker] += 1
            self.forwards[worker].pop()
        units = _UNITS[way] * self.whole // len(self.graph.workers[worker])
        heapq.heappush(self.ends, (now + units, worker, way, stage))
