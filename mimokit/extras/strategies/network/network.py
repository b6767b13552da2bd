"""Links between nodes, and how long nodes compute and exchange."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from mimokit.config.errors import ConfigError, Problem
from mimokit.extras.strategies.exchanges import Exchange
from mimokit.prediction.hardware import Hardware
from mimokit.prediction.link import Link
from mimokit.units import counted

MOST_TO_TRY = 8
"""Nodes of a ring whose every order is tried; larger rings go to the nearest node next."""


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
    """Return the order of a ring whose slowest link is the fastest."""
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


LINK_EFFICIENCY = 0.924
"""Share of a line's rate that payload gets: the rest goes to headers, and to hosts that are late.

Fitted, with `COMPUTE_SPREAD`, to tests/extras/strategies/network/measured.py."""

COMPUTE_SPREAD = 0.126
"""How much longer the slowest of nodes that should be equal computes than the others."""


@dataclass(frozen=True)
class Network:
    """Links between nodes, and how fast nodes are.

    `Network("1 Gbit/s", "30 ms")` has equal links. With `sites=(2, 2)` and `inside=Link.of(...)`
    these are the links between sites. `links` is a matrix instead. `Network.of_hardware` takes
    what `calibrate` measured.

    Attributes:
        bandwidth: of a link, with its unit: bit/s or B/s.
        jitter: by how much a message may be later, with its unit.
        links: a link for each pair, by sender and receiver, in place of all that.
        speeds: of each node, 1 for one that needs the given seconds for a step; none: equal nodes.
        spread: how much longer the slowest of equal nodes computes. Given speeds replace it.
        emulate: whether the exchanges of a fit take as long as on this network, and its nodes
            compute as slowly as `speeds` says.

    Raises:
        ConfigError: a bandwidth without a unit or of 0, a negative latency, a speed of 0.
    """

    bandwidth: str | None = None
    latency: str = "0 ms"
    jitter: str = "0 ms"
    sites: tuple[int, ...] = ()
    inside: Link | None = None
    links: Sequence[Sequence[Link]] | None = None
    speeds: tuple[float, ...] = ()
    efficiency: float = LINK_EFFICIENCY
    spread: float = COMPUTE_SPREAD
    emulate: bool = False

    def __post_init__(self) -> None:
        for name, values in (("sites", self.sites), ("speeds", self.speeds)):
            if any(value <= 0 for value in values):
                raise _rejected(name, values, "each must be above 0")
        if not 0 < self.efficiency <= 1:
            raise _rejected("efficiency", self.efficiency, "it must be above 0 and at most 1")
        if self.spread < 0:
            raise _rejected("spread", self.spread, "it must be at least 0")
        _ = self.link

    @cached_property
    def link(self) -> Links:
        """The link from one node to another."""
        if (self.bandwidth is None) == (self.links is None):
            raise _rejected("bandwidth", self.bandwidth, "give either it or the matrix `links`")
        if self.links is not None:
            if any(len(row) != len(self.links) for row in self.links):
                raise _rejected(
                    "links", counted(len(self.links), "row"), "each row needs as many links"
                )
            return Matrix(tuple(map(tuple, self.links)))
        between = Link.of(self.bandwidth or "", self.latency, self.jitter)
        if not self.sites:
            return Equal(between)
        if self.inside is None:
            raise _rejected("inside", None, "sites need the link within them, a Link")
        return Sites(self.sites, self.inside, between)

    @classmethod
    def of_hardware(cls, hardware: Hardware, nodes: int) -> Network:
        """Return the network between ranks of a host, as `calibrate` measured it."""
        measured = hardware.domain
        rate = 8 * measured.bandwidth * hardware.efficiency.links
        links = [[Link(rate, measured.latency)] * nodes] * nodes
        return cls(links=links, efficiency=1.0)

    def check_nodes(self, nodes: int) -> None:
        """Check that the sites and speeds are those of all nodes.

        Raises:
            ConfigError: they are not.
        """
        if self.sites and sum(self.sites) != nodes:
            raise _rejected(
                "sites", self.sites, f"they must have {counted(nodes, 'node')} together"
            )
        if self.links is not None and len(self.links) < nodes:
            raise _rejected(
                "links", counted(len(self.links), "row"), f"give one for each of {nodes}"
            )
        if self.speeds and len(self.speeds) != nodes:
            raise _rejected(
                "speeds", self.speeds, f"give one for each of the {counted(nodes, 'node')}"
            )

    def step_seconds(self, compute_seconds: float, nodes: int) -> tuple[float, ...]:
        """Return how long each node computes in a step; of equal nodes the last is the slowest."""
        if self.speeds:
            return tuple(compute_seconds / speed for speed in self.speeds)
        slowest = compute_seconds * (1 + self.spread * (nodes > 1))
        return (*[compute_seconds] * (nodes - 1), slowest)

    def exchange_seconds(self, exchange: Exchange, group: Sequence[int]) -> float:
        """Return how long a group of nodes exchanges, from when the last of them is ready."""
        payload = exchange.payload_bytes(len(group))
        return self.collective_seconds(exchange.rule.operation, payload, group)

    def collective_seconds(self, operation: str, payload: float, group: Sequence[int]) -> float:
        """Return how long a collective of a group takes, with `payload` bytes of each node."""
        if len(group) < 2:
            return 0.0
        return _seconds(self.link, operation, payload / self.efficiency, tuple(group))


def _seconds(links: Links, operation: str, payload: float, group: tuple[int, ...]) -> float:
    members = len(group)
    rounds, part = {
        "all_gather": (members - 1, payload),
        "broadcast": (1, payload),
        # Two nodes swap everything and need no second round.
        "gossip": (1, payload) if members == 2 else (2 * (members - 1), payload / members),
        "low_bit_all_reduce": (2, payload * (members - 1) / members),
    }.get(operation, (2 * (members - 1), payload / members))

    order = _order(links, part, group)
    slowest = max(links(a, b).seconds(part, members) for a, b in ring_pairs(order))
    return rounds * slowest


@lru_cache(maxsize=4096)
def _order(links: Links, part: float, group: tuple[int, ...]) -> tuple[int, ...]:
    return ring_order(group, lambda a, b: links(a, b).seconds(part))


def _rejected(name: str, value: object, right: str) -> ConfigError:
    sentence = f"network.{name} is {value}; {right}."
    return ConfigError([Problem("network", name, value, sentence)])
