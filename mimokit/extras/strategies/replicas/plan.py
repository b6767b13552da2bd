"""`ExchangingReplicas`: what each rank of a replica exchanges with its peers, and when."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from mimokit.architecture.from_config import modules_of_config
from mimokit.architecture.layers_on_stage import stage_tensors
from mimokit.architecture.modules import PROJECTOR_NAME, EncoderBranch, Module
from mimokit.architecture.tensor_cut import ShardPlace, TensorCut
from mimokit.config import ExperimentConfig
from mimokit.config.sizes import sizes_of
from mimokit.extras.strategies.exchanges.plan import Exchange, StrategyPlan, plan_strategy
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.replicas import ReplicaPlan

MOST_DUE = 1000
"""Steps with an exchange that a report lists."""


@dataclass(frozen=True)
class ExchangingReplicas(ReplicaPlan):
    """Replicas of a layout, and what their ranks exchange."""

    entries: tuple[int, ...] = field(repr=False)
    steps: int
    seed: int

    def __getstate__(self) -> dict[str, Any]:
        # Rules hold functions, which pickle cannot take; they are made again.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def plan_of(self, rank: int) -> StrategyPlan:
        """Return what a rank of the layout exchanges; nodes of the plan are replicas.

        All numbers count as one tensor: between replicas of a layout rules work entry by entry.
        """
        return self._plans[self.entries[rank]]

    @cached_property
    def _plans(self) -> Mapping[int, StrategyPlan]:
        sizes = self.replicas, self.seed
        return {
            entries: plan_strategy(self.config, {"weights": (entries,)}, *sizes)
            for entries in dict.fromkeys(self.entries)
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
    config: ExperimentConfig, modules: Mapping[str, ModuleRanks], layout_ranks: int
) -> ExchangingReplicas:
    """Plan the exchanges of replicas; see `mimokit.planning.replicas.plan_replicas`."""
    assert config.strategy is not None
    entries, runtime = trained_entries(config, modules, layout_ranks), config.runtime
    return ExchangingReplicas(
        config.strategy, layout_ranks, entries, runtime.num_iterations, runtime.seed
    )


def trained_entries(
    config: ExperimentConfig, modules: Mapping[str, ModuleRanks], layout_ranks: int
) -> tuple[int, ...]:
    """Return the entries of the shards that each rank trains, with their padding."""
    entries = [0] * layout_ranks
    for module in modules_of_config(config.model):
        ranks = modules[module.name]
        places = [
            replace(ranks.shard_place(rank), replica=0, expert_replica=0) for rank in ranks.stage(0)
        ]
        for stage in range(ranks.pipeline_parallel):
            cuts = _trained_on_stage(config, module, ranks, stage)
            at = {place: _entries(cuts, place) for place in dict.fromkeys(places)}
            for place, rank in zip(places, ranks.stage(stage), strict=True):
                entries[rank] += at[place]
    return tuple(entries)


def _entries(cuts: Mapping[str, TensorCut], place: ShardPlace) -> int:
    shards = (cut.at(place) for cut in cuts.values())
    return sum(math.prod(shard.shape) for shard in shards if shard.is_held)


def _trained_on_stage(
    config: ExperimentConfig, module: Module, ranks: ModuleRanks, stage: int
) -> dict[str, TensorCut]:
    sizes = sizes_of(config.model.get_parallelism(module.name), ranks.data_parallel, 1)
    network = config.model.get_architecture(module.name)
    partly = isinstance(module, EncoderBranch) or network.is_frozen
    frozen = network.frozen_parts if partly else frozenset()
    return {
        row.copy_of or row.name: row.cut
        for row in stage_tensors(module, sizes, stage)
        if row.trains and _part_of(module, row.name) not in frozen
    }


def _part_of(module: Module, name: str) -> str:
    if isinstance(module, EncoderBranch) and name.startswith(PROJECTOR_NAME):
        return "projector"
    return "encoder"
