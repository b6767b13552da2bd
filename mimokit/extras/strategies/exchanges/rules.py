"""The rules of each strategy: what is exchanged every how many steps, and how many bytes it is."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mimokit.architecture.tensor_cut import Shape
from mimokit.config.strategy import StrategyConfig
from mimokit.extras.strategies.exchanges.masks import Grouping, Masks, left_out
from mimokit.extras.strategies.exchanges.shapes import fragments_of
from mimokit.extras.strategies.exchanges.sizes import (
    Operation,
    demo_bytes,
    low_bit_bytes,
    sparse_bytes,
)

Payload = Callable[[int, int], float]
"""(number of the exchange, members of the group) -> bytes."""


@dataclass(frozen=True, eq=False)
class Rule:
    """One thing that nodes exchange again and again.

    Attributes:
        index: its place among the rules of the strategy: the order within a step.
        offset: an exchange is due after c completed steps if c > offset and c - offset is a
            multiple of `interval`.
        payload: bytes that a node gives to the collective.
        masks: which entries; None: all.
        deviation: standard deviation of the payload, where masks are random.
    """

    purpose: str
    index: int
    operation: Operation
    tensors: tuple[str, ...]
    interval: int
    grouping: Grouping
    payload: Payload = field(repr=False)
    offset: int = 0
    late: int = 0
    masks: Masks | None = None
    deviation: float = 0.0
    fault_rate: float = 0.0
    seed: int = 0

    def number(self, step: int) -> int | None:
        """Return which exchange begins after `step` completed steps, counted from 0, or None."""
        past = step - self.offset
        if past <= 0 or past % self.interval:
            return None
        number = past // self.interval - 1
        return None if left_out(self.seed, self.index, self.fault_rate, number) else number

    def numbers(self, steps: int) -> NDArray[np.int64]:
        """Return the numbers of the exchanges that begin within the first `steps` steps."""
        numbers: NDArray[np.int64] = np.arange(max(0, (steps - self.offset) // self.interval))
        if self.fault_rate == 0:
            return numbers
        rate = self.fault_rate
        out = [left_out(self.seed, self.index, rate, number) for number in numbers.tolist()]
        return np.delete(numbers, np.flatnonzero(out))

    def step(self, number: int) -> int:
        """Return after how many completed steps an exchange begins."""
        return self.offset + (number + 1) * self.interval


CODEC_BITS = {"int8": 8, "int4": 4}

Rules = tuple[Rule, ...]


def rules_of(
    config: StrategyConfig, shapes: Mapping[str, Shape], nodes: int, seed: int, element_bytes: int
) -> Rules:
    """Return the rules of a strategy, in their order within a step."""
    makers = _Makers(config, shapes, nodes, seed, element_bytes)
    rules: Rules = getattr(makers, config.name)()
    return rules


@dataclass(frozen=True)
class _Makers:
    config: StrategyConfig
    shapes: Mapping[str, Shape]
    nodes: int
    seed: int
    element_bytes: int

    def simple_reduce(self) -> Rules:
        return (self._whole("gradients", 1),)

    def fedavg(self) -> Rules:
        rule = self._whole("weights", self.config.H, offset=self.config.sync_offset)
        weight = self.element_bytes * (self.config.weighting == "samples")
        payload = _always(self.element_bytes * self._entries(self.shapes) + weight)
        return (replace(rule, grouping=self._islands(), payload=payload),)

    def sparta(self) -> Rules:
        return (self._sparse(self.config.delay, self.config.fault_rate),)

    def diloco(self) -> Rules:
        return (self._outer_step(0),)

    def sparta_diloco(self) -> Rules:
        return (self._sparse(0, 0.0), self._outer_step(1))

    def demo(self) -> Rules:
        sizes = (self.config.compression_chunk, self.config.compression_topk, self.element_bytes)
        total = sum(demo_bytes(shape, *sizes) for shape in self.shapes.values())
        rule = self._whole("momentum", 1)
        return (replace(rule, operation="all_gather", payload=_always(total)),)

    def streaming_diloco(self) -> Rules:
        config = self.config
        rules = []
        for index, names in enumerate(fragments_of(self.shapes, config.fragments)):
            offset = index * config.H // config.fragments
            rule = self._whole(f"fragment {index}", config.H, offset=offset)
            late = config.overlap_steps
            rules.append(self._weights(replace(rule, index=index, tensors=names, late=late)))
        return tuple(rules)

    def noloco(self) -> Rules:
        rule = self._whole("gossip", self.config.H)
        groups = Grouping(self.nodes, self.config.group_size, self.seed)
        payload = _always(2 * self.element_bytes * self._entries(self.shapes))
        return (replace(rule, operation="gossip", grouping=groups, payload=payload),)

    def sparse_loco(self) -> Rules:
        sizes = (self.config.chunk, self.config.density, self.config.bits)
        total = sum(sparse_bytes(math.prod(shape), *sizes) for shape in self.shapes.values())
        rule = self._whole("sparse outer step", self.config.H)
        return (replace(rule, operation="all_gather", payload=_always(total)),)

    def _whole(self, purpose: str, interval: int, *, offset: int = 0) -> Rule:
        payload = _always(self.element_bytes * self._entries(self.shapes))
        names = tuple(self.shapes)
        return Rule(purpose, 0, "all_reduce", names, interval, self._all(), payload, offset=offset)

    def _outer_step(self, index: int) -> Rule:
        rule = self._whole("outer step", self.config.H, offset=self.config.sync_offset)
        return self._weights(replace(rule, index=index, grouping=self._islands()))

    def _weights(self, rule: Rule) -> Rule:
        entries = self._entries(rule.tensors)
        if self.config.codec is None:
            return replace(rule, payload=_always(self.element_bytes * entries))
        bits = CODEC_BITS[self.config.codec]
        return replace(
            rule,
            operation="low_bit_all_reduce",
            payload=lambda number, members: low_bit_bytes(entries, bits, members),
        )

    def _sparse(self, delay: int, fault_rate: float) -> Rule:
        config, size = self.config, self.element_bytes
        masks = Masks(config.index_selector, config.p_sparta, self.seed)
        entries = np.array([math.prod(shape) for shape in self.shapes.values()], np.int64)
        total, random = float(entries.sum()), config.index_selector == "random"

        def payload(number: int, members: int) -> float:
            if random:
                return size * config.p_sparta * total
            return float(size * masks.counts(entries, number).sum())

        variance = total * config.p_sparta * (1 - config.p_sparta) if random else 0.0

        return replace(
            self._whole("sparse weights", config.sparta_interval),
            payload=payload,
            masks=masks,
            late=delay,
            fault_rate=fault_rate,
            deviation=size * math.sqrt(variance),
            seed=self.seed,
        )

    def _entries(self, names: Mapping[str, Shape] | tuple[str, ...]) -> int:
        return sum(math.prod(self.shapes[name]) for name in names)

    def _all(self) -> Grouping:
        return Grouping(self.nodes, self.nodes, self.seed)

    def _islands(self) -> Grouping:
        return Grouping(self.nodes, self.config.island_size or self.nodes, self.seed)


def _always(payload: float) -> Payload:
    return lambda number, members: payload
