"""Links between nodes: equal ones, sites joined by slow ones, or one for each pair."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from mimokit.config.errors import ConfigError, Problem
from mimokit.units import bits_per_second, rate_text, seconds_of, seconds_text

MOST_TO_TRY = 8
"""Nodes of a ring whose every order is tried; larger rings go to the nearest node next."""


@dataclass(frozen=True)
class Link:
    """One direction between two nodes; both directions work at once.

    Attributes:
        bandwidth: bit/s.
        latency: seconds until the first bit arrives.
        jitter: seconds by which a message may be later than that, evenly spread from 0.
    """

    bandwidth: float
    latency: float = 0.0
    jitter: float = 0.0

    @classmethod
    def of(cls, bandwidth: str, latency: str = "0 ms", jitter: str = "0 ms") -> Self:
        """Return a link from texts with units: `Link.of("1 Gbit/s", "30 ms")`.

        Raises:
            ConfigError: a unit is missing or unknown, the bandwidth is not above 0, or a duration
                is negative.
        """
        return cls(
            _read("bandwidth", bits_per_second, bandwidth),
            _read("latency", seconds_of, latency),
            _read("jitter", seconds_of, jitter),
        )

    def seconds(self, payload: float, messages: int = 1) -> float:
        """Return how long a message of `payload` bytes takes, the last of `messages` at once."""
        late = self.jitter * messages / (messages + 1)
        return self.latency + late + 8 * payload / self.bandwidth

    def __str__(self) -> str:
        return f"{rate_text(self.bandwidth)}, {seconds_text(self.latency)}"


Links = Callable[[int, int], Link]
"""(sender, receiver) -> link."""


@dataclass(frozen=True)
class Equal:
    """The same link between any two nodes."""

    link: Link

    def __call__(self, sender: int, receiver: int) -> Link:
        """Return the link from one node to another."""
        return self.link


@dataclass(frozen=True)
class Sites:
    """Fast links within a site and slow ones between sites.

    Attributes:
        sizes: nodes of each site; the first site has the first nodes.
        inside: the link of two nodes of one site.
        between: that of nodes of two sites.
    """

    sizes: tuple[int, ...]
    inside: Link
    between: Link

    def __call__(self, sender: int, receiver: int) -> Link:
        """Return the link from one node to another."""
        same = self._site(sender) == self._site(receiver)
        return self.inside if same else self.between

    def _site(self, node: int) -> int:
        return sum(last <= node for last in itertools.accumulate(self.sizes))


@dataclass(frozen=True)
class Matrix:
    """A link for each pair: [sender][receiver]."""

    links: tuple[tuple[Link, ...], ...]

    def __call__(self, sender: int, receiver: int) -> Link:
        """Return the link from one node to another."""
        return self.links[sender][receiver]


def ring_order(group: Sequence[int], cost: Callable[[int, int], float]) -> tuple[int, ...]:
    """Return the order of a ring whose slowest link is the fastest.

    Args:
        cost: seconds of a message from a node to the next one.
    """
    first, *rest = group
    if len(group) <= MOST_TO_TRY:
        orders = ((first, *others) for others in itertools.permutations(rest))
        return min(orders, key=lambda order: max(cost(a, b) for a, b in ring_pairs(order)))
    order, left = [first], set(rest)
    while left:
        order.append(min(sorted(left), key=lambda node: cost(order[-1], node)))
        left.remove(order[-1])
    return tuple(order)


def ring_pairs(order: Sequence[int]) -> list[tuple[int, int]]:
    """Return (sender, receiver) around a ring."""
    return list(zip(order, [*order[1:], order[0]], strict=True))


def _read(field: str, reader: Callable[[str], float], text: str) -> float:
    try:
        return reader(text)
    except ValueError as error:
        sentence = f"network.{field} is {error}."
        raise ConfigError([Problem("network", field, text, sentence)]) from None
