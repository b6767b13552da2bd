"""The outer weights of a replica, and the optimizer that steps them, by plain arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from mimokit.config import OptimizerConfig
from mimokit.engine.strategies.optim import OptimSpec

Named = Mapping[str, torch.nn.Parameter]


class OuterStep:
    """The outer weights of some tensors of a replica.

    Attributes:
        weights: by name; they share no memory with the model.
    """

    def __init__(self, model: Named, names: Iterable[str], config: OptimizerConfig | None) -> None:
        """Copy the weights.

        Args:
            config: of the optimizer; None: that of DiLoCo.
        """
        self.weights: dict[str, Tensor] = {name: model[name].detach().clone() for name in names}
        self.gradients: dict[str, Tensor] = {}
        self._momentum: dict[str, Tensor] = {}
        self._config = config or OptimizerConfig(name="sgd", lr=0.7, momentum=0.9, nesterov=True)
        self._torch: Any = None
        if self._config.name != "sgd" and self.weights:
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
