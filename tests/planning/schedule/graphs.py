"""Graphs of stages and times, drawn at random and simulated event by event."""

import heapq
from collections import deque
from dataclasses import dataclass, field

from hypothesis import strategies as st

from mimokit.planning.schedule import Action, Schedule, StageGraph, stage_graph


@st.composite
def stage_graphs(draw: st.DrawFn) -> StageGraph:
    """Return up to five modules in a connected graph, of up to three stages each."""
    count = draw(st.integers(1, 5))
    names = [f"m{number}" for number in range(count)]
    topology: dict[str, list[str]] = {name: [] for name in names}
    for number in range(1, count):
        # An earlier module feeds each module, so that the graph is connected.
        topology[names[draw(st.integers(0, number - 1))]].append(names[number])
    extra = st.tuples(st.sampled_from(names), st.sampled_from(names))
    for source, target in draw(st.lists(extra, max_size=4)):
        if source < target and target not in topology[source]:
            topology[source].append(target)
    shuffled = draw(st.permutations(names))
    sizes = {name: draw(st.integers(1, 3)) for name in names}
    return stage_graph({name: topology[name] for name in shuffled}, sizes)


@dataclass
class EventSimulation:
    """Actions on a clock, one event after the other: as slow and as plain as it can be.

    Attributes:
        forward: stage, micro-batch -> time; the others alike, transfers by edge.
        weight_gradient: the part of backward that is apart, where the order has it apart.
    """

    schedule: Schedule
    forward: list[list[float]]
    backward: list[list[float]]
    transfer: list[list[float]]
    transfer_backward: list[list[float]]
    weight_gradient: list[list[float]]
    done: dict[Action, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stages = len(self.schedule.graph.stages)
        self.left = [deque(self.schedule.actions(stage)) for stage in range(stages)]
        self.busy = [False] * stages
        self.arrived: set[tuple[int, bool, int]] = set()
        self.queues: dict[tuple[int, bool], deque[Action]] = {}
        self.carrying: set[tuple[int, bool]] = set()
        self.events: list[tuple[float, int, Action]] = []
        self.now = 0.0
        while True:
            while any(self.advance(stage) for stage in range(stages)):
                pass
            if not self.events:
                break
            self.now, _, action = heapq.heappop(self.events)
            self.finish(action)
        assert not any(self.left), "everybody came to the end"

    def begin(self, action: Action, time: float) -> None:
        self.done[action] = (self.now, self.now + time)
        heapq.heappush(self.events, (self.now + time, len(self.done), action))

    def advance(self, stage: int) -> bool:
        """Do the next action of a stage if it can be done now."""
        if self.busy[stage] or not self.left[stage]:
            return False
        action = self.left[stage][0]
        m = action.microbatch
        if action.kind.startswith("receive"):
            if (action.edge, action.kind.endswith("backward"), m) not in self.arrived:
                return False
        elif action.kind.startswith("send"):
            link = (action.edge, action.kind.endswith("backward"))
            self.queues.setdefault(link, deque()).append(action)
            self.carry(link)
        elif action.kind in ("forward", "backward", "weight-gradient"):
            self.busy[stage] = True
            self.begin(action, self.computing(action.kind, stage, m))
        self.left[stage].popleft()
        return True

    def computing(self, kind: str, stage: int, m: int) -> float:
        if kind == "forward":
            return self.forward[stage][m]
        apart = any(step == ("weight-gradient", m) for step in self.schedule.steps(stage))
        weights = self.weight_gradient[stage][m] if apart else 0.0
        return weights if kind == "weight-gradient" else self.backward[stage][m] - weights

    def carry(self, link: tuple[int, bool]) -> None:
        if link not in self.carrying and self.queues[link]:
            action = self.queues[link].popleft()
            times = self.transfer_backward if link[1] else self.transfer
            self.carrying.add(link)
            self.begin(action, times[action.edge][action.microbatch])

    def finish(self, action: Action) -> None:
        if action.edge is None:
            self.busy[action.stage] = False
            return
        link = (action.edge, action.kind.endswith("backward"))
        self.arrived.add((*link, action.microbatch))
        self.carrying.remove(link)
        self.carry(link)
