"""Which engine becomes which rank of which replica, and which exchanges cross hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mimokit.units import span_text

HostPair = tuple[str, str]
"""Two hosts that a link joins, in the order of their replicas."""

HOSTS_SHOWN = 4


@dataclass(frozen=True)
class Placement:
    """Replicas of a layout on hosts.

    Attributes:
        slots: the engine of each rank of the world, by its number in the cluster.
        hosts: the host of each rank of the world.
        layout_ranks: ranks of one replica.
    """

    slots: tuple[int, ...]
    hosts: tuple[str, ...]
    layout_ranks: int

    @property
    def replicas(self) -> int:
        """How many there are."""
        return len(self.slots) // self.layout_ranks

    def hosts_of(self, replica: int) -> tuple[str, ...]:
        """Return the hosts of a replica, in the order of its ranks."""
        first = replica * self.layout_ranks
        return tuple(dict.fromkeys(self.hosts[first : first + self.layout_ranks]))

    @property
    def split(self) -> tuple[int, ...]:
        """The replicas that have ranks on more than one host."""
        return tuple(one for one in range(self.replicas) if len(self.hosts_of(one)) > 1)

    @property
    def problem(self) -> str | None:
        """One sentence on replicas whose own communication crosses hosts; None: there are none."""
        split = self.split
        if not split:
            return None
        one = len(split) == 1
        hosts = list(dict.fromkeys(host for replica in split for host in self.hosts_of(replica)))
        names = ", ".join(hosts[:HOSTS_SHOWN]) + (", …" if len(hosts) > HOSTS_SHOWN else "")
        return (
            f"{'Replica' if one else 'Replicas'} {span_text(split)} of {self.layout_ranks} ranks "
            f"{'is' if one else 'are'} spread over the hosts {names}, so that more than exchanges "
            f"crosses hosts; start a multiple of {self.layout_ranks} engines on each host, or "
            "choose a smaller layout."
        )


def place_replicas(hosts: Sequence[str], layout_ranks: int, replicas: int) -> Placement:
    """Place replicas on the engines of a cluster: each fills a host before the next one begins.

    A replica that fits a host lies on one host as long as a host has room for a whole one. What is
    left takes as few hosts as it can. Replicas and ranks keep the order of the engines.

    Args:
        hosts: the host of each engine of the cluster.
        layout_ranks: ranks of one replica.
        replicas: how many; they must not have more ranks than there are engines.
    """
    free: dict[str, list[int]] = {}
    for slot, host in enumerate(hosts):
        free.setdefault(host, []).append(slot)
    placed = [_on_one_host(free, layout_ranks) for _ in range(replicas)]
    whole = [one for one in placed if one]
    rest = [_spread(free, layout_ranks) for _ in range(replicas - len(whole))]
    slots = tuple(slot for one in (*whole, *rest) for slot in one)
    return Placement(slots, tuple(hosts[slot] for slot in slots), layout_ranks)


def _on_one_host(free: dict[str, list[int]], ranks: int) -> list[int]:
    """Take the engines of a replica from the first host that has so many; none: return nothing."""
    there = next((slots for slots in free.values() if len(slots) >= ranks), None)
    return [] if there is None else _take(there, ranks)


def _spread(free: dict[str, list[int]], ranks: int) -> list[int]:
    """Take whole hosts, the largest first, and the rest from the smallest host that has it."""
    found: list[int] = []
    while len(found) < ranks:
        missing = ranks - len(found)
        enough = [slots for slots in free.values() if len(slots) >= missing]
        there = min(enough, key=len) if enough else max(free.values(), key=len)
        found += _take(there, min(missing, len(there)))
    return found


def _take(slots: list[int], count: int) -> list[int]:
    taken = slots[:count]
    del slots[:count]
    return taken


def crossed_links(hosts: Sequence[str], ranks: Sequence[int]) -> tuple[HostPair, ...]:
    """Return the pairs of hosts between which ranks exchange, each once; none: on one host.

    Args:
        hosts: of each rank of the world.
        ranks: that exchange with each other.
    """
    names = list(dict.fromkeys(hosts[rank] for rank in ranks))
    return tuple((one, other) for place, one in enumerate(names) for other in names[place + 1 :])
