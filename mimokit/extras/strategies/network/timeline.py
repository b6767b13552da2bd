"""When each node computes, waits and exchanges, from a plan and a network."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mimokit.extras.strategies.exchanges import Exchange, StrategyPlan
from mimokit.extras.strategies.network.network import Network
from mimokit.step_kinds import StepKind

Activity = Literal["compute", "wait", StepKind.EXCHANGE]

Computing = float | NDArray[np.float64]
"""Seconds of compute of a step on a node of speed 1, or those of each [step, node]."""


@dataclass(frozen=True, slots=True)
class NodeBlock:
    """What a node does for a while."""

    node: int
    activity: Activity
    start: float
    stop: float
    step: int


@dataclass(frozen=True)
class StrategyTimeline:
    """All blocks of all nodes, in their order of steps.

    Attributes:
        blocks: what nodes do; blocks of no length are left out.
    """

    blocks: tuple[NodeBlock, ...]
    nodes: int

    @property
    def wall_seconds(self) -> float:
        """When the last node ends."""
        return max((block.stop for block in self.blocks), default=0.0)

    def seconds(self, activity: Activity) -> tuple[float, ...]:
        """Return how long each node does something."""
        total = [0.0] * self.nodes
        for block in self.blocks:
            if block.activity == activity:
                total[block.node] += block.stop - block.start
        return tuple(total)


def strategy_timeline(
    plan: StrategyPlan, network: Network, compute_seconds: Computing, steps: int
) -> StrategyTimeline:
    """Return when each node does what in the first `steps` steps.

    An exchange begins when the last node of its group is ready. Nodes go on computing where its
    result is written in a later step, and wait there until it has arrived.

    Args:
        network: between them. Its speeds and spread are those of one number of seconds alone.
        compute_seconds: of a step on a node of speed 1, or of each [step, node].

    Raises:
        ConfigError: the network is not one of the plan's nodes.
    """
    network.check_nodes(plan.nodes)
    return StrategyTimeline(tuple(_Nodes(plan, network, compute_seconds).blocks(steps)), plan.nodes)


class _Nodes:
    def __init__(self, plan: StrategyPlan, network: Network, compute_seconds: Computing) -> None:
        self._plan, self._network = plan, network
        if isinstance(compute_seconds, np.ndarray):
            start = np.zeros((1, plan.nodes))
            self._computed: NDArray[np.float64] | None = np.concatenate(
                [start, compute_seconds.cumsum(axis=0)]
            )
        else:
            self._computed = None
            self._times = np.array(network.step_seconds(compute_seconds, plan.nodes))
        self._clocks: NDArray[np.float64] = np.zeros(plan.nodes)
        self._step = 0

    def blocks(self, steps: int) -> Iterator[NodeBlock]:
        under_way: list[tuple[int, int, NDArray[np.float64]]] = []
        for exchange in self._plan.exchanges(steps):
            yield from self._write(under_way, exchange.step)
            yield from self._compute(exchange.step)
            if exchange.finish == exchange.step:
                yield from self._exchange(exchange)
            else:
                arrival = self._arrival(exchange)
                heapq.heappush(under_way, (exchange.finish, len(under_way), arrival))
        yield from self._write(under_way, steps)
        yield from self._compute(steps)

    def _write(
        self, under_way: list[tuple[int, int, NDArray[np.float64]]], until: int
    ) -> Iterator[NodeBlock]:
        while under_way and under_way[0][0] <= until:
            step, _, arrival = heapq.heappop(under_way)
            yield from self._compute(step)
            yield from self._until(np.maximum(self._clocks, arrival), StepKind.EXCHANGE)

    def _compute(self, step: int) -> Iterator[NodeBlock]:
        before, self._step = self._step, step
        if self._computed is None:
            took = (step - before) * self._times
        else:
            took = self._computed[step] - self._computed[before]
        yield from self._until(self._clocks + took, "compute")

    def _exchange(self, exchange: Exchange) -> Iterator[NodeBlock]:
        ready = self._clocks.copy()
        for group in exchange.groups:
            ready[list(group)] = self._clocks[list(group)].max()
        end = self._arrival(exchange)
        yield from self._until(ready, "wait")
        yield from self._until(end, StepKind.EXCHANGE)

    def _arrival(self, exchange: Exchange) -> NDArray[np.float64]:
        arrival = self._clocks.copy()
        for group in exchange.groups:
            begin = self._clocks[list(group)].max()
            arrival[list(group)] = begin + self._network.exchange_seconds(exchange, group)
        return arrival

    def _until(self, stops: NDArray[np.float64], activity: Activity) -> Iterator[NodeBlock]:
        starts, self._clocks = self._clocks, stops
        for node, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            if stop > start:
                yield NodeBlock(node, activity, start, stop, self._step)
