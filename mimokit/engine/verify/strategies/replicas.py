"""What replicas exchange, by plain arithmetic over models in one process.

The reference for `mimokit.engine.replicas`: no process group, no bucket, no plan of when an
exchange is due. Of the plan it takes what is drawn (replicas that exchange with each other, masks,
faults) and which tensors are a fragment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from mimokit.config import OptimizerConfig
from mimokit.engine.strategies.optim import OptimSpec
from mimokit.engine.verify.strategies.pieces import Choices, LowBits, Named, Open, Shards
from mimokit.planning.strategies import StrategyPlan
from mimokit.planning.strategies.draws import left_out
from mimokit.planning.strategies.rules import CODEC_BITS


class OuterStep:
    """The outer weights of some tensors of a replica, and the optimizer that steps them."""

    def __init__(self, model: Named, names: Iterable[str], config: OptimizerConfig | None) -> None:
        """Copy the weights; without a config the optimizer is that of DiLoCo."""
        self.weights: dict[str, Tensor] = {name: model[name].detach().clone() for name in names}
        self.gradients: dict[str, Tensor] = {}
        self._momentum: dict[str, Tensor] = {}
        self._config = config or OptimizerConfig(name="sgd", lr=0.7, momentum=0.9, nesterov=True)
        self._parameters = {name: nn.Parameter(one) for name, one in self.weights.items()}
        self._optimizer: torch.optim.Optimizer | None = None
        if self._config.name != "sgd" and self.weights:
            self._optimizer = OptimSpec.from_config(self._config).build(self._parameters.values())

    def step(self) -> None:
        """Step the weights by the gradients."""
        if self._optimizer is not None:
            for name, parameter in self._parameters.items():  # in the memory of the weights
                parameter.grad = self.gradients[name]
            self._optimizer.step()
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


Write = Callable[[], None]


class ReplicaArithmetic:
    """Exchanges between models, as a strategy says.

    Attributes:
        open: which entries the last step left open; None: it chose nothing.
    """

    def __init__(self, plan: StrategyPlan, models: Sequence[Named], shards: Shards) -> None:
        self._plan, self._config, self._models = plan, plan.config, models
        self._completed = 0
        self._later: dict[int, list[Write]] = {}
        self._fragments = [tuple(models[0])]
        if self._config.name == "streaming_diloco":
            self._fragments = [rule.tensors for rule in plan.rules]
        outer = self._config.outer_optimizer
        self._outer = [
            [OuterStep(model, names, outer) for names in self._fragments] for model in models
        ]
        self.choices: Choices | None = None
        self.open: Open | None = None
        self.low_bits: LowBits | None = None
        if self._config.codec is not None:
            self.low_bits = LowBits(CODEC_BITS[self._config.codec], models, shards)
        elif self._config.is_cut_by_rank:
            self.choices = Choices(self._config, models, shards)
        self._drift = [{name: torch.zeros_like(one) for name, one in m.items()} for m in models]

    def average_gradients(self) -> None:
        """Give every model the mean gradient, under simple_reduce."""
        if self._config.name != "simple_reduce":
            return
        for name in self._models[0]:
            gradients = [model[name].grad for model in self._models]
            mean = sum(one for one in gradients if one is not None) / len(gradients)
            for model in self._models:
                model[name].grad = mean.clone()  # type: ignore[union-attr]

    @torch.no_grad()
    def step(self) -> bool:
        """Step the weights, if the strategy is an optimizer."""
        if self._config.name != "demo":
            return False
        assert self.choices is not None
        self.open = self.choices.step()
        return True

    @torch.no_grad()
    def after_step(self) -> None:
        """Exchange what is due after a step of all models."""
        self._completed += 1
        if self.low_bits is not None:
            self.low_bits.begin_step()
        for write in self._later.pop(self._completed, []):
            write()
        config = self._config
        match config.name:
            case "fedavg":
                self._when_due(self._mean, config.H, config.sync_offset)
            case "sparta":
                self._when_due(self._sparse_mean, config.sparta_interval)
            case "diloco":
                self._when_due(self._outer_step, config.H, config.sync_offset)
            case "sparta_diloco":
                self._when_due(self._sparse_mean, config.sparta_interval)
                self._when_due(self._outer_step, config.H, config.sync_offset)
            case "streaming_diloco":
                for place in range(len(self._fragments)):
                    stagger = place * config.H // config.fragments
                    self._when_due(partial(self._outer_step, place=place), config.H, stagger)
            case "noloco":
                self._when_due(self._gossip, config.H)
            case "sparse_loco":
                self.open = None
                self._when_due(self._sparse_outer_step, config.H)

    def _when_due(self, exchange: Callable[[int], None], interval: int, offset: int = 0) -> None:
        """Do an exchange, of which the argument is how many went before, after its steps."""
        past = self._completed - offset
        if past > 0 and past % interval == 0:
            exchange(past // interval - 1)

    def _write(self, write: Write, steps_later: int) -> None:
        if steps_later:
            self._later.setdefault(self._completed + steps_later, []).append(write)
        else:
            write()

    def _groups(self, number: int) -> Sequence[Sequence[int]]:
        return self._plan.rules[-1].grouping.groups(number)

    def _mean(self, number: int) -> None:
        for group in self._groups(number):
            for name in self._models[0]:
                mean = _mean_of([self._models[k][name] for k in group])
                for k in group:
                    self._models[k][name].copy_(mean)

    def _sparse_mean(self, number: int) -> None:
        config = self._config
        if left_out(self._plan.seed, 0, config.fault_rate, number):
            return
        rule = self._plan.rules[0]
        for name, shape in self._plan.shapes:
            assert rule.masks is not None
            places = torch.from_numpy(rule.masks.indices(name, math.prod(shape), number))
            flat = [model[name].view(-1) for model in self._models]
            places = places.to(flat[0].device)
            mean = _mean_of([weights[places] for weights in flat])
            self._write(partial(_put, flat, places, mean), config.delay)

    def _outer_step(self, number: int, place: int = 0) -> None:
        outer = [parts[place] for parts in self._outer]
        for group in self._groups(number):
            for name in self._fragments[place]:
                changes = [outer[k].weights[name] - self._models[k][name] for k in group]
                if self.low_bits is not None:
                    change = self.low_bits.mean(name, changes)
                    gradients = dict.fromkeys(group, change)
                else:
                    mean = _mean_of([self._models[k][name] for k in group])
                    gradients = {k: outer[k].weights[name] - mean for k in group}
                for k in group:
                    outer[k].gradients[name] = gradients[k]
        self._write(partial(self._write_outer, outer), self._config.overlap_steps)

    def _write_outer(self, outer: Sequence[OuterStep]) -> None:
        stays = self._config.mix
        for model, replica in zip(self._models, outer, strict=True):
            replica.step()
            for name, weight in replica.weights.items():
                model[name].copy_(stays * model[name] + (1 - stays) * weight)

    def _sparse_outer_step(self, number: int) -> None:
        assert self.choices is not None
        self.open = self.choices.outer_step()

    def _gossip(self, number: int) -> None:
        config, outer = self._config, [parts[0].weights for parts in self._outer]
        pull = config.outer_lr if config.gossip is None else config.gossip
        after: list[dict[str, Tensor]] = [{} for _ in self._models]
        for group in self._groups(number):
            for name in self._models[0]:
                change = _mean_of([self._models[k][name] - outer[k][name] for k in group])
                mean = _mean_of([outer[k][name] for k in group])
                for k in group:
                    drift = config.momentum * self._drift[k][name] + config.outer_lr * change
                    self._drift[k][name] = drift + pull * (mean - outer[k][name])
                    after[k][name] = outer[k][name] + self._drift[k][name]
        for model, old, new in zip(self._models, outer, after, strict=True):
            for name, weight in model.items():
                old[name] = new[name]
                weight.copy_(new[name])


def _mean_of(tensors: Sequence[Tensor]) -> Tensor:
    return sum(tensors[1:], tensors[0]) / len(tensors)


def _put(models: Sequence[Tensor], places: Tensor, mean: Tensor) -> None:
    for weights in models:
        weights[places] = mean
