"""Links between nodes, and how long nodes compute and exchange."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mimokit.config.errors import ConfigError, Problem
from mimokit.extras.strategies.exchanges import Exchange
from mimokit.prediction.link import Link
from mimokit.units import counted

LINK_EFFICIENCY = 0.924
"""Share of a line's rate that payload gets: the rest goes to headers, and to hosts that are late.

Fitted, with `COMPUTE_SPREAD`, to tests/extras/strategies/network/measured.py."""

COMPUTE_SPREAD = 0.126
"""How much longer the slowest of nodes that should be equal computes than the others."""


@dataclass(frozen=True)
class Network:
    """Equal links between nodes, `Network("1 Gbit/s", "30 ms")`, and how fast nodes are.

    Attributes:
        bandwidth: of a link, with its unit: bit/s or B/s.
        jitter: by how much a message may be later, with its unit.
        speeds: of each node, 1 for one that needs the given seconds for a step; none: equal nodes.
        spread: how much longer the slowest of equal nodes computes. Given speeds replace it.
        emulate: whether the exchanges of a fit take as long as on this network, and its nodes
            compute as slowly as `speeds` says.

    Raises:
        ConfigError: a bandwidth without a unit or of 0, a negative latency, a speed of 0.
    """

    bandwidth: str
    latency: str = "0 ms"
    jitter: str = "0 ms"
    speeds: tuple[float, ...] = ()
    efficiency: float = LINK_EFFICIENCY
    spread: float = COMPUTE_SPREAD
    emulate: bool = False

    def __post_init__(self) -> None:
        if any(speed <= 0 for speed in self.speeds):
            raise _rejected("speeds", self.speeds, "each must be above 0")
        if not 0 < self.efficiency <= 1:
            raise _rejected("efficiency", self.efficiency, "it must be above 0 and at most 1")
        if self.spread < 0:
            raise _rejected("spread", self.spread, "it must be at least 0")
        _ = self.link

    @cached_property
    def link(self) -> Link:
        """The link between any two nodes."""
        return Link.of(self.bandwidth, self.latency, self.jitter)

    def check_nodes(self, nodes: int) -> None:
        """Raise a ConfigError if speeds are given for another number of nodes."""
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
        members, payload = len(group), payload / self.efficiency
        if members < 2:
            return 0.0
        rounds, part = {
            "all_gather": (members - 1, payload),
            "broadcast": (1, payload),
            # Two nodes swap everything and need no second round.
            "gossip": (1, payload) if members == 2 else (2 * (members - 1), payload / members),
            "low_bit_all_reduce": (2, payload * (members - 1) / members),
        }.get(operation, (2 * (members - 1), payload / members))
        return rounds * self.link.seconds(part, members)


def _rejected(name: str, value: object, right: str) -> ConfigError:
    sentence = f"network.{name} is {value}; {right}."
    return ConfigError([Problem("network", name, value, sentence)])
