"""`ExchangingReplicas`: what each rank of a replica exchanges with its peers, and when."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from mimokit.config import ExperimentConfig
from mimokit.extras.strategies.exchanges.plan import Exchange, StrategyPlan, plan_strategy
from mimokit.extras.strategies.replicas.shards import TrainedShards, trained_shards
from mimokit.planning.execution import ModuleExecution
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.replicas import ReplicaPlan

MOST_DUE = 1000
"""Steps with an exchange that a report lists."""


@dataclass(frozen=True)
class ExchangingReplicas(ReplicaPlan):
    """Replicas of a layout, and what their ranks exchange.

    Attributes:
        shards: what each rank of the layout trains.
    """

    shards: TrainedShards = field(repr=False)
    steps: int
    seed: int

    def __getstate__(self) -> dict[str, Any]:
        # Rules hold functions, which pickle cannot take; they are made again.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def entries(self) -> tuple[int, ...]:
        """Numbers that each rank of the layout trains."""
        each = {key: plan.entries for key, plan in self._plans.items()}
        return tuple(each[self._key(rank)] for rank in range(self.layout_ranks))

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


def planned(
    config: ExperimentConfig,
    modules: Mapping[str, ModuleRanks],
    executions: Mapping[str, ModuleExecution],
    layout_ranks: int,
) -> ExchangingReplicas:
    """Plan the exchanges of replicas; see `mimokit.planning.replicas.plan_replicas`."""
    assert config.strategy is not None
    shards = trained_shards(config, modules, executions, layout_ranks)
    runtime = config.runtime
    return ExchangingReplicas(
        config.strategy, layout_ranks, shards, runtime.num_iterations, runtime.seed
    )
