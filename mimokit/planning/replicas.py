"""`ReplicaPlan`: replicas of a layout, their ranks and their hosts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType

from mimokit.config import ExperimentSections, StrategyConfig
from mimokit.config.errors import ConfigError, Problem
from mimokit.extra_rooms import MissingRoomError, import_extra
from mimokit.planning.ranks import ModuleRanks
from mimokit.units import counted, span_text

HostPair = tuple[str, str]
"""Two hosts that a link joins, in the order of their replicas."""

HOSTS_SHOWN = 4


@dataclass(frozen=True)
class Placement:
    """Replicas of a layout on hosts.

    Attributes:
        slots: the engine of each rank of the world, by its number in the cluster.
        hosts: the host of each rank of the world.
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
        return tuple(r for r in range(self.replicas) if len(self.hosts_of(r)) > 1)

    @property
    def problem(self) -> str | None:
        """One sentence on replicas whose own communication crosses hosts; None: there are none."""
        split = self.split
        if not split:
            return None
        noun, verb = ("Replica", "is") if len(split) == 1 else ("Replicas", "are")
        hosts = list(dict.fromkeys(host for replica in split for host in self.hosts_of(replica)))
        names = ", ".join(hosts[:HOSTS_SHOWN]) + (", …" if len(hosts) > HOSTS_SHOWN else "")
        return (
            f"{noun} {span_text(split)} of {counted(self.layout_ranks, 'rank')} {verb} spread over "
            f"the hosts {names}, so that more than exchanges crosses hosts; start a multiple of "
            f"{counted(self.layout_ranks, 'engine')} on each host, or choose a smaller layout."
        )


def place_replicas(hosts: Sequence[str], layout_ranks: int, replicas: int) -> Placement:
    """Place replicas on the engines of a cluster: each fills a host before the next one begins.

    A replica that fits a host lies on one host as long as a host has room for a whole one. What is
    left takes as few hosts as it can. Replicas and ranks keep the order of the engines, each of
    which has a host in `hosts` and of which there must be enough.
    """
    free: dict[str, list[int]] = {}
    for slot, host in enumerate(hosts):
        free.setdefault(host, []).append(slot)
    placed = [_on_one_host(free, layout_ranks) for _ in range(replicas)]
    whole = [slots for slots in placed if slots]
    rest = [_spread(free, layout_ranks) for _ in range(replicas - len(whole))]
    slots = tuple(itertools.chain(*whole, *rest))
    return Placement(slots, tuple(hosts[slot] for slot in slots), layout_ranks)


def _on_one_host(free: dict[str, list[int]], ranks: int) -> list[int]:
    there = next((slots for slots in free.values() if len(slots) >= ranks), None)
    return [] if there is None else _take(there, ranks)


def _spread(free: dict[str, list[int]], ranks: int) -> list[int]:
    slots: list[int] = []
    while len(slots) < ranks:
        missing = ranks - len(slots)
        enough = [engines for engines in free.values() if len(engines) >= missing]
        there = min(enough, key=len) if enough else max(free.values(), key=len)
        slots += _take(there, min(missing, len(there)))
    return slots


def _take(slots: list[int], count: int) -> list[int]:
    first = slots[:count]
    del slots[:count]
    return first


def crossed_links(hosts: Sequence[str], ranks: Sequence[int]) -> tuple[HostPair, ...]:
    """Return the pairs of hosts between which ranks exchange, each once; none: on one host."""
    names = list(dict.fromkeys(hosts[rank] for rank in ranks))
    return tuple(itertools.combinations(names, 2))


@dataclass(frozen=True)
class ReplicaPlan:
    """Replicas of a layout. What their ranks exchange is planned in the room of strategies.

    Rank r of the layout in replica k is rank `k * layout_ranks + r` of the world. Ranks with the
    same r hold the same shard and exchange it.

    Attributes:
        hosts: of each rank of the world; None: they are not known, or all ranks are on one.
    """

    config: StrategyConfig
    layout_ranks: int
    hosts: tuple[str, ...] | None = field(default=None, compare=False, kw_only=True)

    @property
    def replicas(self) -> int:
        """How many there are."""
        return self.config.replicas

    @property
    def world_size(self) -> int:
        """Ranks of all replicas."""
        return self.replicas * self.layout_ranks

    def place(self, rank: int) -> tuple[int, int]:
        """Return (replica, rank in the layout) of a rank of the world."""
        return divmod(rank, self.layout_ranks)

    def ranks_of(self, replica: int) -> range:
        """Return the ranks of a replica."""
        return range(replica * self.layout_ranks, (replica + 1) * self.layout_ranks)

    def peers(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of the other replicas with the same shard, ascending."""
        first = rank % self.layout_ranks
        every = range(first, self.world_size, self.layout_ranks)
        return tuple(other for other in every if other != rank)

    def placed(self, hosts: Sequence[str]) -> tuple[ReplicaPlan, Placement]:
        """Return this plan on the engines of a cluster, and which engine becomes which rank."""
        if len(hosts) < self.world_size:
            sentence = (
                f"Section 'strategy': strategy.replicas is {self.replicas}, which makes "
                f"{counted(self.world_size, 'rank')} with {self.layout_ranks} each, but the hosts "
                f"have {counted(len(hosts), 'engine')}; choose fewer replicas or more hosts."
            )
            raise ConfigError([Problem("strategy", "replicas", self.replicas, sentence)])
        placement = place_replicas(hosts, self.layout_ranks, self.replicas)
        return replace(self, hosts=placement.hosts), placement

    @property
    def placement(self) -> Placement | None:
        """The replicas on their hosts; None: the hosts are not known, or there is one."""
        if self.hosts is None:
            return None
        return Placement(tuple(range(self.world_size)), self.hosts, self.layout_ranks)

    def links(self, rank: int) -> tuple[HostPair, ...]:
        """Return the links between hosts that the exchanges of a rank of the layout cross.

        Where groups change with every exchange, one exchange crosses some of them.
        """
        if self.hosts is None:
            return ()
        return crossed_links(self.hosts, sorted((rank, *self.peers(rank))))


def plan_replicas(
    config: ExperimentSections, modules: Mapping[str, ModuleRanks], layout_ranks: int
) -> ReplicaPlan | None:
    """Plan the replicas of a layout; None: the config has no strategy."""
    if config.strategy is None:
        return None
    plan: ReplicaPlan = strategies().planned(config, modules, layout_ranks)
    return plan


def strategies() -> ModuleType:
    """Return what the room of strategies does; raise `ConfigError` if it is not installed."""
    try:
        return import_extra("extras.strategies.replicas", "Section 'strategy'")
    except MissingRoomError as error:
        raise ConfigError([Problem("strategy", "strategy", None, str(error))]) from None
