"""`ReplicaPlan`: replicas of a layout, and what each rank exchanges with its peers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from mimokit.config import ExperimentConfig, StrategyConfig
from mimokit.config.errors import ConfigError, Problem
from mimokit.planning.execution import ModuleExecution
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.strategies.plan import Exchange, StrategyPlan, plan_strategy
from mimokit.planning.strategies.shards import TrainedShards, trained_shards
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
    """Take the engines of a replica from the first host that has so many; none: return nothing."""
    there = next((slots for slots in free.values() if len(slots) >= ranks), None)
    return [] if there is None else _take(there, ranks)


def _spread(free: dict[str, list[int]], ranks: int) -> list[int]:
    """Take whole hosts, the largest first, and the rest from the smallest host that has it."""
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


MOST_DUE = 1000
"""Steps with an exchange that a report lists."""


@dataclass(frozen=True)
class ReplicaPlan:
    """Replicas of a layout, and what their ranks exchange.

    Rank r of the layout in replica k is rank `k * layout_ranks + r` of the world. Ranks with the
    same r hold the same shard and exchange it.

    Attributes:
        shards: what each rank of the layout trains.
        hosts: of each rank of the world; None: they are not known, or all ranks are on one.
    """

    config: StrategyConfig
    layout_ranks: int
    shards: TrainedShards = field(repr=False)
    steps: int
    seed: int
    hosts: tuple[str, ...] | None = field(default=None, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        # Rules hold functions, which pickle cannot take; they are made again.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def entries(self) -> tuple[int, ...]:
        """Numbers that each rank of the layout trains."""
        each = {key: plan.entries for key, plan in self._plans.items()}
        return tuple(each[self._key(rank)] for rank in range(self.layout_ranks))

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
        """Return this plan on the engines of a cluster, and which engine becomes which rank.

        Raises:
            ConfigError: there are fewer engines than ranks.
        """
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

    def plan_of(self, rank: int) -> StrategyPlan:
        """Return what a rank of the layout exchanges; nodes of the plan are replicas."""
        return self._plans[self._key(rank)]

    def _key(self, rank: int) -> tuple[int, int | None]:
        return id(self.shards.ranks[rank]), self._gradients(rank)

    def _gradients(self, rank: int) -> int | None:
        return self.shards.gradients[rank] if self.config.averages_gradients else None

    @cached_property
    def _plans(self) -> Mapping[tuple[int, int | None], StrategyPlan]:
        whole, sizes = dict(self.shards.whole), (self.replicas, self.seed)
        different = {self._key(rank): rank for rank in range(self.layout_ranks)}
        return {
            key: plan_strategy(
                self.config,
                whole,
                *sizes,
                held=self.shards.ranks[rank],
                gradients=self._gradients(rank),
            )
            for key, rank in different.items()
        }

    def exchanges(self, rank: int) -> tuple[Exchange, ...]:
        """Return the first exchange of each rule of a rank of the layout."""
        rules = self.plan_of(rank).rules
        return tuple(Exchange(rule, 0, rule.step(0), rule.step(0) + rule.late) for rule in rules)

    def due(self) -> list[int]:
        """Return after how many completed steps of the run exchanges begin: the first 1,000."""
        return list(itertools.islice(self._due(), MOST_DUE))

    def _due(self) -> Iterator[int]:
        rules = self.plan_of(0).rules
        horizon = min(self.steps, MOST_DUE * max(rule.interval for rule in rules) + rules[0].offset)
        steps = (exchange.step for exchange in self.plan_of(0).exchanges(horizon))
        return (step for step, _ in itertools.groupby(steps))

    def payload_bytes(self, rank: int) -> dict[str, float]:
        """Return purpose -> bytes that a rank of the layout gives to an exchange."""
        return {
            exchange.rule.purpose: exchange.payload_bytes(exchange.rule.grouping.largest())
            for exchange in self.exchanges(rank)
        }

    def sent_bytes(self, rank: int) -> dict[str, float]:
        """Return purpose -> bytes that a rank of the layout sends in an exchange, as a ring."""
        return {
            exchange.rule.purpose: exchange.sent_bytes(exchange.rule.grouping.largest())
            for exchange in self.exchanges(rank)
        }

    def replica_payloads(self) -> Iterator[tuple[Exchange, float]]:
        """Return the first exchange of each rule with the bytes of all ranks of a replica."""
        ranks = [self.exchanges(rank) for rank in range(self.layout_ranks)]
        for exchanges in zip(*ranks, strict=True):
            largest = exchanges[0].rule.grouping.largest()
            yield exchanges[0], sum(each.payload_bytes(largest) for each in exchanges)


def plan_replicas(
    config: ExperimentConfig,
    modules: Mapping[str, ModuleRanks],
    executions: Mapping[str, ModuleExecution],
    layout_ranks: int,
) -> ReplicaPlan | None:
    """Plan the replicas of a layout; None: the config has no strategy.

    Args:
        modules: the ranks of each module in one replica.
        executions: how they compute each module.

    Raises:
        ConfigError: groups do not suit the replicas.
    """
    strategy = config.strategy
    if strategy is None:
        return None
    shards = trained_shards(config, modules, executions, layout_ranks)
    runtime = config.runtime
    return ReplicaPlan(strategy, layout_ranks, shards, runtime.num_iterations, runtime.seed)
