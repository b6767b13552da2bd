"""A rule: one thing that nodes exchange again and again, every so many steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mimokit.planning.strategies.draws import Grouping, Masks, left_out
from mimokit.planning.strategies.sizes import Operation

Payload = Callable[[int, int], float]
"""(number of the exchange, members of the group) -> bytes."""


@dataclass(frozen=True, eq=False)
class Rule:
    """One thing that nodes exchange again and again.

    Attributes:
        purpose: what it is for, in a word or two.
        index: its place among the rules of the strategy: the order within a step.
        operation: the collective.
        tensors: what is exchanged, by name.
        interval: steps between two exchanges.
        offset: an exchange is due after c completed steps if c > offset and c - offset is a
            multiple of `interval`.
        late: steps between taking values and writing the result.
        grouping: which nodes exchange with each other.
        payload: bytes that a node gives to the collective.
        masks: which entries; None: all.
        deviation: standard deviation of the payload, where masks are random or are cut.
        fault_rate: probability that an exchange is left out.
        seed: of the faults.
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
