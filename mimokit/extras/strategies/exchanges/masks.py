"""Choices that every node makes alike: from the seed and a number, never from a message.

Each choice can be made alone, in any order: a node that starts at step 5,000 draws what the others
draw. Choices per exchange are drawn in blocks, so that planning many exchanges is fast.
"""

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mimokit.config.strategy import Selector

Indices = NDArray[np.int64]
Groups = tuple[tuple[int, ...], ...]

BLOCK = 1024
"""Exchanges that are drawn together."""

_GROUPS, _FAULTS, _MASKS = 1, 2, 3


def generator(seed: int, *path: int) -> np.random.Generator:
    """Return the generator of one choice."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, *path))))


@dataclass(frozen=True)
class Grouping:
    """Which nodes exchange with each other.

    Attributes:
        size: nodes of a group; `nodes` or more: one group of all.
    """

    nodes: int
    size: int
    seed: int

    @property
    def fixed(self) -> bool:
        """Whether all nodes are one group, every time."""
        return self.size >= self.nodes

    def groups(self, number: int) -> Groups:
        """Return the groups of an exchange, nodes ascending in each; the last may be smaller."""
        if self.fixed:
            return (tuple(range(self.nodes)),)
        full, rest = _block_of_groups(self, number // BLOCK)
        groups = tuple(map(tuple, full[number % BLOCK].tolist()))
        last = tuple(rest[number % BLOCK].tolist())
        return (*groups, last) if last else groups

    def largest(self) -> int:
        """Return the nodes of the largest group."""
        return min(self.size, self.nodes)

    def smallest(self) -> int:
        """Return the nodes of the smallest group."""
        return self.nodes if self.fixed else self.nodes % self.size or self.size

    def times_in_smallest(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how often each node is in the group that is smaller than the others."""
        times = np.zeros(self.nodes, np.int64)
        if self.smallest() == self.largest():
            return times
        for block in np.unique(numbers // BLOCK).tolist():
            rows = numbers[numbers // BLOCK == block] % BLOCK
            rest = _block_of_groups(self, block)[1][rows]
            times += np.bincount(rest.ravel(), minlength=self.nodes)
        return times


@lru_cache(maxsize=8)
def _block_of_groups(grouping: Grouping, block: int) -> tuple[Indices, Indices]:
    """Return nodes: [exchange, group, place] of full groups, [exchange, place] of the rest."""
    start = np.tile(np.arange(grouping.nodes), (BLOCK, 1))
    orders = generator(grouping.seed, _GROUPS, block).permuted(start, axis=1)
    whole = grouping.nodes // grouping.size * grouping.size
    full = np.sort(orders[:, :whole].reshape(BLOCK, -1, grouping.size), axis=2)
    return full, np.sort(orders[:, whole:], axis=1)


def left_out(seed: int, rule: int, rate: float, number: int) -> bool:
    """Return whether a fault leaves out an exchange, on all nodes alike."""
    return rate > 0 and bool(_block_of_chances(seed, rule, number // BLOCK)[number % BLOCK] < rate)


@lru_cache(maxsize=8)
def _block_of_chances(seed: int, rule: int, block: int) -> NDArray[np.float64]:
    return generator(seed, _FAULTS, rule, block).random(BLOCK)


@dataclass(frozen=True)
class Masks:
    """Which entries of a tensor an exchange of SPARTA takes, for the WHOLE tensor.

    Attributes:
        selector: "random": each entry with probability p, drawn each time. "shuffled_sequential":
            one permutation for the whole run, cut into ceil(1 / p) chunks that take turns.
            "partitioned": as many classes, but no more than entries, drawn again after each cycle.
        p: the share of the entries.
    """

    selector: Selector
    p: float
    seed: int

    def indices(self, tensor: str, entries: int, number: int) -> Indices:
        """Return the ascending places of the entries, counted as in the flattened tensor.

        Tensors of different names have different masks.
        """
        key = _key(tensor)
        if self.selector == "random":
            return _bernoulli(generator(self.seed, _MASKS, key, number), entries, self.p)
        parts = self.cycle(entries)
        if self.selector == "shuffled_sequential":
            order = _permutation(self.seed, key, entries, 0)
            long, short = entries % parts, entries // parts
            chunk = number % parts
            first = chunk * short + min(chunk, long)
            return np.sort(order[first : first + short + (chunk < long)])
        order = _permutation(self.seed, key, entries, number // parts)
        return np.sort(order[number % parts :: parts])

    def cycle(self, entries: int) -> int:
        """Return after how many exchanges every entry was taken once (random: on average)."""
        parts = max(1, math.ceil(1 / self.p))
        return max(1, min(parts, entries)) if self.selector == "partitioned" else parts

    def counts(self, entries: Indices, number: int) -> Indices:
        """Return how many entries an exchange takes of tensors; not of random masks."""
        parts = np.full_like(entries, math.ceil(1 / self.p))
        if self.selector == "partitioned":
            parts = np.clip(entries, 1, parts)
        return entries // parts + (number % parts < entries % parts)


def _bernoulli(draws: np.random.Generator, entries: int, p: float) -> Indices:
    if p >= 1:
        return np.arange(entries)
    expected = entries * p
    parts, last = [], -1
    while last < entries - 1:
        gaps = draws.geometric(p, size=int(expected + 4 * math.sqrt(expected) + 8))
        # A gap beyond the end is as good as any larger one, and keeps the sum in 64 bits.
        parts.append(last + np.cumsum(np.minimum(gaps, entries + 1)))
        last = int(parts[-1][-1])
    places = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return places[: np.searchsorted(places, entries)]


@lru_cache(maxsize=512)
def _permutation(seed: int, key: int, entries: int, draw: int) -> Indices:
    return generator(seed, _MASKS, key, draw).permutation(entries)


def _key(tensor: str) -> int:
    return int.from_bytes(hashlib.blake2b(tensor.encode(), digest_size=8).digest(), "big")
