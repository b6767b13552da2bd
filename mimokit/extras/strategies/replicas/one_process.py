"""The rules between replicas on whole weights, in one process that has all models.

The reference of `ReplicaUpdate`. The rules are the same; no tensor is cut, no rank has a part of
one, no message is sent, and nothing is gathered.
"""

from collections.abc import Mapping, Sequence

import torch

from mimokit.architecture.tensor_cut import TensorCut
from mimokit.config import StrategyConfig
from mimokit.extras.strategies.exchanges.shapes import in_order
from mimokit.extras.strategies.nodes.buckets import Shard
from mimokit.extras.strategies.nodes.modules import Summed, SummedModule
from mimokit.extras.strategies.replicas.update import communicating, strategy_of

Named = Mapping[str, torch.nn.Parameter]


class ReplicasInOneProcess:
    """Whole models, one for each replica, between which sums are made one after another."""

    def __init__(
        self,
        config: StrategyConfig,
        models: Sequence[Named],
        cuts: Mapping[str, TensorCut],
        seed: int,
    ) -> None:
        self._config, self._models, self._step = config, models, 0
        shards = {name: cut.shards(1)[0] for name, cut in cuts.items()}
        shapes = in_order({name: cut.whole for name, cut in cuts.items()})
        self._strategies = [strategy_of(config) for _ in models]
        for number, (strategy, model) in enumerate(zip(self._strategies, models, strict=True)):
            strategy.seed = seed
            strategy._init_exchange(Shard(model, shards, shapes), number, len(models))

    def average_gradients(self) -> None:
        """Give every model the mean gradient, if the strategy does that."""
        if not self._config.averages_gradients:
            return
        for name in self._models[0]:
            gradients = [model[name].grad for model in self._models]
            mean = sum(gradient for gradient in gradients if gradient is not None) / len(gradients)
            for model in self._models:
                model[name].grad = mean.clone()  # type: ignore[union-attr]

    @torch.no_grad()
    def exchange_weights(self) -> None:
        """Exchange what is due after a step of all models."""
        self._step += 1
        for modules in zip(*map(communicating, self._strategies), strict=True):
            _exchange(modules, self._step)


def _exchange(modules: Sequence[SummedModule], step: int) -> None:
    for rule in modules[0].rules:
        for module in modules:
            module.write_due(rule, step)
        for exchange in modules[0].plan.begins(step, rule.index):
            given = [module.given(exchange) for module in modules]
            for group in exchange.groups:
                total = sum(given[replica] for replica in group)
                for replica in group:
                    given[replica].copy_(total)  # type: ignore[arg-type]
            for module, flat in zip(modules, given, strict=True):
                module.take(exchange, Summed(flat), step)
