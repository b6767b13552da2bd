"""`StrategyPlan`: for every step which nodes exchange which entries, and the bytes."""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimokit.config.errors import ConfigError, Problem
from mimokit.config.strategy import StrategyConfig
from mimokit.extras.strategies.exchanges.masks import Groups, Indices
from mimokit.extras.strategies.exchanges.rules import Rule, rules_of
from mimokit.extras.strategies.exchanges.shapes import Shapes, shapes_of_size
from mimokit.extras.strategies.exchanges.sizes import sent_bytes

Bytes = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One exchange, of all groups of nodes at once.

    Attributes:
        number: which exchange of the rule, counted from 0.
        finish: optimizer steps completed when the result is written; steps between may go on.
    """

    rule: Rule
    number: int
    step: int
    finish: int

    @property
    def groups(self) -> Groups:
        """The nodes that exchange with each other."""
        return self.rule.grouping.groups(self.number)

    def group_of(self, node: int) -> tuple[int, ...]:
        """Return the group of a node."""
        return next(group for group in self.groups if node in group)

    def payload_bytes(self, members: int) -> float:
        """Return what a node of a group gives, none if alone; of a random mask the mean."""
        return self.rule.payload(self.number, members) if members > 1 else 0

    def sent_bytes(self, members: int) -> float:
        """Return what a node of a group sends, as a ring does it."""
        return sent_bytes(self.rule.operation, self.payload_bytes(members), members)


@dataclass(frozen=True)
class StrategyPlan:
    """What a strategy exchanges. Every node makes the same plan from the same arguments.

    Attributes:
        shapes: of the whole tensors that train, by name, in the order of the model.
        seed: of islands, masks and faults.
        element_bytes: of an entry on its way: 4, or 8 for models in fp64.
    """

    config: StrategyConfig
    shapes: Shapes
    nodes: int
    seed: int = 42
    element_bytes: int = 4

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """What is exchanged, in the order within a step."""
        return rules_of(self.config, dict(self.shapes), self.nodes, self.seed, self.element_bytes)

    @property
    def entries(self) -> int:
        """Entries of all tensors that the nodes have."""
        return sum(math.prod(shape) for _, shape in self.shapes)

    def begins(self, step: int, rule: int | None = None) -> tuple[Exchange, ...]:
        """Return the exchanges that take their values after `step` completed steps."""
        return tuple(self._chosen(step, rule, late=False))

    def ends(self, step: int, rule: int | None = None) -> tuple[Exchange, ...]:
        """Return the exchanges whose result is written after `step` completed steps."""
        return tuple(self._chosen(step, rule, late=True))

    def _chosen(self, step: int, rule: int | None, *, late: bool) -> Iterator[Exchange]:
        for chosen in self.rules if rule is None else (self.rules[rule],):
            start = step - chosen.late * late
            number = chosen.number(start)
            if number is not None:
                yield Exchange(chosen, number, start, start + chosen.late)

    def exchanges(self, steps: int) -> Iterator[Exchange]:
        """Return the exchanges that begin within the first `steps` steps, in their order."""
        streams = [self._stream(rule, steps) for rule in self.rules]
        if len(streams) == 1:
            return streams[0]
        return heapq.merge(*streams, key=lambda exchange: (exchange.step, exchange.rule.index))

    def _stream(self, rule: Rule, steps: int) -> Iterator[Exchange]:
        for number in rule.numbers(steps).tolist():
            step = rule.step(number)
            yield Exchange(rule, number, step, step + rule.late)

    def indices(self, exchange: Exchange, tensor: str) -> Indices | None:
        """Return which entries of the flattened tensor an exchange takes; None: all."""
        masks = exchange.rule.masks
        if masks is None:
            return None
        return masks.indices(tensor, math.prod(dict(self.shapes)[tensor]), exchange.number)

    def sent(self, steps: int) -> dict[str, Bytes]:
        """Return purpose -> bytes that each node sends in the first `steps` steps."""
        return {rule.purpose: self._sent_of(rule, steps) for rule in self.rules}

    def _sent_of(self, rule: Rule, steps: int) -> Bytes:
        numbers = rule.numbers(steps)
        large, small = rule.grouping.largest(), rule.grouping.smallest()
        if large == small:
            payloads = (rule.payload(number, large) for number in numbers.tolist())
            return np.full(self.nodes, sent_bytes(rule.operation, sum(payloads), large))
        # Groups of some of the nodes have the same payload each time.
        each = [sent_bytes(rule.operation, rule.payload(0, size), size) for size in (large, small)]
        seldom = rule.grouping.times_in_smallest(numbers)
        return (len(numbers) - seldom) * each[0] + seldom * each[1]

    def rows(self, steps: int) -> Iterator[dict[str, Any]]:
        """Return a row per node and exchange: step, node, purpose, operation and bytes."""
        for exchange in self.exchanges(steps):
            for group in exchange.groups:
                payload = exchange.payload_bytes(len(group))
                sent = exchange.sent_bytes(len(group))
                for node in group:
                    yield {
                        "step": exchange.step,
                        "node": node,
                        "purpose": exchange.rule.purpose,
                        "operation": exchange.rule.operation,
                        "payload_bytes": payload,
                        "sent_bytes": sent,
                    }


def plan_strategy(
    config: StrategyConfig,
    shapes: Mapping[str, Sequence[int]],
    nodes: int,
    seed: int = 42,
    *,
    element_bytes: int = 4,
) -> StrategyPlan:
    """Plan what nodes exchange; see `StrategyPlan` for the arguments, equal on all nodes.

    Raises:
        ConfigError: there are 0 nodes, a group is larger than the nodes, or the seed is negative.
    """
    config.check_nodes(nodes)
    if seed < 0:
        sentence = f"The seed is {seed}; it must be at least 0."
        raise ConfigError([Problem("strategy", "seed", seed, sentence)])
    pairs = tuple((name, tuple(shape)) for name, shape in shapes.items())
    return StrategyPlan(config, pairs, nodes, seed, element_bytes)


def plan_of_size(
    config: StrategyConfig, parameters: int, nodes: int, seed: int = 42
) -> StrategyPlan:
    """Plan for the shapes of `shapes_of_size`; raises what `plan_strategy` does."""
    return plan_strategy(config, shapes_of_size(config, parameters), nodes, seed)
