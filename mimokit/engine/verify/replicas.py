"""What replicas exchange, by plain arithmetic over models in one process.

The reference for `mimokit.engine.replicas`: no process group, no bucket, no plan of when an
exchange is due. Of the plan it takes which replicas are drawn together, and the masks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mimokit.config import OptimizerConfig
from mimokit.engine.strategies.optim import OptimSpec
from mimokit.planning.strategies import StrategyPlan

Named = Mapping[str, torch.nn.Parameter]


class ReplicaArithmetic:
    """Exchanges between models, as a strategy says.

    Args:
        plan: draws groups and masks.
        models: the tensors of each replica that train, by name.
    """

    def __init__(self, plan: StrategyPlan, models: Sequence[Named]) -> None:
        self._plan, self._config, self._models = plan, plan.config, models
        self._completed = 0
        outer = self._config.outer_optimizer
        self._outer = [_OuterStep(one, outer) for one in models]
        self._drift = [{name: torch.zeros_like(one) for name, one in m.items()} for m in models]

    def average_gradients(self) -> None:
        """Give every model the mean gradient, under simple_reduce."""
        if self._config.name != "simple_reduce":
            return
        for name in self._models[0]:
            own = [model[name].grad for model in self._models]
            mean = sum(one for one in own if one is not None) / len(own)
            for model in self._models:
                model[name].grad = mean.clone()  # type: ignore[union-attr]

    @torch.no_grad()
    def after_step(self) -> None:
        """Exchange what is due after a step of all models."""
        self._completed += 1
        config = self._config
        if config.name in ("sparta", "sparta_diloco"):
            number = _due(self._completed, config.sparta_interval, 0)
            if number is not None:
                self._sparse_mean(number)
        number = _due(self._completed, config.H, config.sync_offset)
        if number is None:
            return
        if config.name == "fedavg":
            self._mean(number)
        elif config.name in ("diloco", "sparta_diloco"):
            self._outer_steps(number)
        elif config.name == "noloco":
            self._gossip(number)

    def _groups(self, number: int) -> Sequence[Sequence[int]]:
        return self._plan.rules[-1].grouping.groups(number)

    def _mean(self, number: int) -> None:
        for group in self._groups(number):
            for name in self._models[0]:
                mean = _mean_of([self._models[k][name] for k in group])
                for k in group:
                    self._models[k][name].copy_(mean)

    def _sparse_mean(self, number: int) -> None:
        exchange = next(iter(self._plan.begins(self._completed, 0)), None)
        if exchange is None:  # left out by a fault
            return
        assert exchange.number == number
        for name in self._models[0]:
            places = torch.from_numpy(self._plan.indices(exchange, name))
            flat = [model[name].view(-1) for model in self._models]
            mean = sum(one[places] for one in flat) / len(flat)
            for one in flat:
                one[places] = mean

    def _outer_steps(self, number: int) -> None:
        for group in self._groups(number):
            for name in self._models[0]:
                mean = sum(self._models[k][name] for k in group) / len(group)
                for k in group:
                    self._outer[k].gradients[name] = self._outer[k].weights[name] - mean
        for model, outer in zip(self._models, self._outer, strict=True):
            outer.step()
            for name, one in model.items():
                one.copy_(outer.weights[name])

    def _gossip(self, number: int) -> None:
        config, outer = self._config, [one.weights for one in self._outer]
        pull = config.outer_lr if config.gossip is None else config.gossip
        after: list[dict[str, Tensor]] = [{} for _ in self._models]
        for group in self._groups(number):
            for name in self._models[0]:
                change = sum(self._models[k][name] - outer[k][name] for k in group) / len(group)
                mean = sum(outer[k][name] for k in group) / len(group)
                for k in group:
                    drift = config.momentum * self._drift[k][name] + config.outer_lr * change
                    self._drift[k][name] = drift + pull * (mean - outer[k][name])
                    after[k][name] = outer[k][name] + self._drift[k][name]
        for model, old, new in zip(self._models, outer, after, strict=True):
            for name, one in model.items():
                old[name] = new[name]
                one.copy_(new[name])


class _OuterStep:
    """The outer weights of a replica, and their optimizer."""

    def __init__(self, model: Named, config: OptimizerConfig | None) -> None:
        self.weights: dict[str, Tensor] = {k: v.detach().clone() for k, v in model.items()}
        self.gradients: dict[str, Tensor] = {}
        self._momentum: dict[str, Tensor] = {}
        self._config = config or OptimizerConfig(name="sgd", lr=0.7, momentum=0.9, nesterov=True)
        self._torch: Any = None
        if self._config.name != "sgd":
            self._torch = OptimSpec.from_config(self._config).build(self._parameters())

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(one) for one in self.weights.values()]

    def step(self) -> None:
        """Step the weights by the gradients."""
        if self._torch is not None:
            (group,) = self._torch.param_groups
            for name, parameter in zip(self.weights, group["params"], strict=True):
                parameter.grad = self.gradients[name]
            self._torch.step()
            for name, parameter in zip(self.weights, group["params"], strict=True):
                self.weights[name] = parameter.detach()
            return
        config = self._config
        lr = 1e-3 if config.lr is None else config.lr
        momentum = config.momentum or 0.0
        for name, gradient in self.gradients.items():
            if config.weight_decay:
                gradient = gradient + config.weight_decay * self.weights[name]
            # The first momentum is the gradient itself.
            before = self._momentum.get(name)
            moving = gradient if before is None else momentum * before + gradient
            self._momentum[name] = moving
            direction = gradient + momentum * moving if config.nesterov else moving
            self.weights[name] = self.weights[name] - lr * (direction if momentum else gradient)


def _mean_of(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0].clone()
    for one in tensors[1:]:
        total += one
    return total / len(tensors)


def _due(completed: int, interval: int, offset: int) -> int | None:
    """Return which exchange is due after some steps, counted from 0."""
    past = completed - offset
    return past // interval - 1 if past > 0 and past % interval == 0 else None
