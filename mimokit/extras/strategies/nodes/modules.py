"""Strategies that optimize locally and then communicate, in one module or in several."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mimokit.extras.strategies.exchanges import Exchange, Rule, StrategyPlan
from mimokit.extras.strategies.nodes import communicate
from mimokit.extras.strategies.nodes.buckets import trainable
from mimokit.extras.strategies.nodes.optim import OptimSpec, ensure_optim_spec
from mimokit.extras.strategies.nodes.state import state_of, take_state
from mimokit.extras.strategies.nodes.strategy import Strategy

_CAME = "came/"
"""In front of what has come in and is written in a later step."""


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names have a prefix, by the rest of the name."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


class CommunicationModule(ABC):
    """One phase of communication, after the local optimizer step."""

    @abstractmethod
    def _init_node(self, model: nn.Module, rank: int, num_nodes: int) -> None:
        """Begin on a node."""

    @abstractmethod
    def communicate(self, model: nn.Module, rank: int, num_nodes: int, local_step: int) -> None:
        """Exchange what is due; `local_step` is the number of the step just done, from 0."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the next exchanges depend on; see `state_of`."""
        return state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on, on a node that has begun, from what `state_dict` returned."""
        take_state(self, state)


class PlannedModule(CommunicationModule):
    """A module that executes rules of the strategy's plan, which it gets before `_init_node`.

    Attributes:
        samples: samples that this node has trained on since the last exchange.
    """

    plan: StrategyPlan

    def __init__(self, rule: int | None = None) -> None:
        """Take the place of its rule in the plan; None: it has them all."""
        self._rule = rule
        self.samples = 0
        self._under_way: dict[tuple[int, int], Any] = {}

    def _init_node(self, model: nn.Module, rank: int, num_nodes: int) -> None:
        self.rank, self.num_nodes = rank, num_nodes
        self.parameters = trainable(model)
        self.rules = self.plan.rules if self._rule is None else (self.plan.rules[self._rule],)
        self._under_way = {}

    def communicate(self, model: nn.Module, rank: int, num_nodes: int, local_step: int) -> None:
        """Write what has come in meanwhile, then exchange what is due."""
        step = local_step + 1
        for rule in self.rules:
            self.write_due(rule, step)
            for exchange in self.plan.begins(step, rule.index):
                with communicate.ledger.counting(rule.purpose):
                    taken = self.begin(exchange)
                self.take(exchange, taken, step)

    def write_due(self, rule: Rule, step: int) -> None:
        """Write what a rule has taken in earlier steps, and is due after so many."""
        for exchange in self.plan.ends(step, rule.index):
            if exchange.step < step:
                self.finish(exchange, self._under_way.pop((rule.index, exchange.number)))

    def take(self, exchange: Exchange, taken: Any, step: int) -> None:
        """Write what `begin` returned after so many steps, or keep it until it is due."""
        if exchange.finish == step:
            self.finish(exchange, taken)
        else:
            self._under_way[exchange.rule.index, exchange.number] = taken

    def end(self) -> None:
        """Wait for what is under way; nothing of it is written."""
        for taken in self._under_way.values():
            self.drop(taken)
        self._under_way = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the samples, and what `state` returns."""
        return {"samples": self.samples, "tensors": self.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` returned."""
        self.samples = state["samples"]
        self.go_on(state["tensors"])

    def state(self) -> dict[str, Tensor]:
        """Return what the next exchanges depend on, by name; waits for those that are under way."""
        state = dict(self.kept_tensors())
        for (rule, number), taken in self._under_way.items():
            came, values = self.settled(rule, taken)
            self._under_way[rule, number] = came
            state |= {f"{_CAME}{rule}/{number}/{name}": tensor for name, tensor in values.items()}
        return state

    def go_on(self, saved: Mapping[str, Tensor]) -> None:
        """Go on from what `state` returned, on a node that has begun."""
        came: dict[tuple[int, int], dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in under(_CAME, saved).items():
            rule, number, part = name.split("/", 2)
            came[int(rule), int(number)][part] = tensor
        self.keep({name: tensor for name, tensor in saved.items() if not name.startswith(_CAME)})
        self._under_way = {key: self.taken_again(key[0], came[key]) for key in sorted(came)}

    def kept_tensors(self) -> Mapping[str, Tensor]:
        """Return what a node keeps from one exchange to the next."""
        return {}

    @torch.no_grad()
    def keep(self, saved: Mapping[str, Tensor]) -> None:
        """Take what `kept_tensors` returned."""
        for name, tensor in self.kept_tensors().items():
            tensor.copy_(saved[name].view(tensor.shape))

    def settled(self, rule: int, taken: Any) -> tuple[Any, dict[str, Tensor]]:
        """Wait for an exchange, and return it as one that has come in, and its tensors."""
        raise NotImplementedError(f"{type(self).__name__} writes each result in the same step")

    def taken_again(self, rule: int, values: dict[str, Tensor]) -> Any:
        """Return an exchange that has come in, from its tensors."""
        raise NotImplementedError(f"{type(self).__name__} writes each result in the same step")

    def drop(self, taken: Any) -> None:
        """Wait for an exchange that began, if it goes on in the background."""

    @abstractmethod
    def begin(self, exchange: Exchange) -> Any:
        """Take values and send them; returns what `finish` needs."""

    @abstractmethod
    def finish(self, exchange: Exchange, taken: Any) -> None:
        """Write the result."""


@dataclass(frozen=True)
class Summed:
    """A flat tensor that a group of nodes sums; `wait` returns once it is the sum."""

    flat: Tensor
    wait: communicate.UnderWay = field(default_factory=communicate.UnderWay)


class SummedModule(PlannedModule):
    """A module whose exchanges are sums, entry by entry, whoever makes them."""

    @abstractmethod
    def given(self, exchange: Exchange) -> Tensor:
        """Return what this node gives to the sum, flat; it is summed in place."""

    @abstractmethod
    def write(self, exchange: Exchange, flat: Tensor, members: int) -> None:
        """Write what follows from a sum of so many nodes."""

    def begin(self, exchange: Exchange) -> Summed:
        """Begin to sum; in the background where the result is written in a later step."""
        flat, rule = self.given(exchange), exchange.rule
        group = exchange.group_of(self.rank)
        if not flat.numel():
            communicate.ledger.add(rule.operation, 0, len(group))
            return Summed(flat)
        if rule.late:
            return Summed(flat, communicate.begin_all_reduce(flat))
        communicate.sum_among(flat, group)
        return Summed(flat)

    @torch.no_grad()
    def finish(self, exchange: Exchange, taken: Summed) -> None:
        """Write the result."""
        taken.wait()
        self.write(exchange, taken.flat, len(exchange.group_of(self.rank)))

    def settled(self, rule: int, taken: Summed) -> tuple[Summed, dict[str, Tensor]]:
        """Wait for the sum."""
        taken.wait()
        return Summed(taken.flat), {"sum": taken.flat}

    def taken_again(self, rule: int, values: dict[str, Tensor]) -> Summed:
        """Return a sum that has come in; an empty one was not saved."""
        device = next((weight.device for weight in self.parameters.values()), None)
        return Summed(values.get("sum", torch.empty(0)).to(device))

    def drop(self, taken: Summed) -> None:
        """Wait until the sum is there."""
        taken.wait()


class CommunicateOptimizeStrategy(Strategy):
    """A local optimizer step, then communication modules in their order."""

    def __init__(
        self,
        communication_modules: Sequence[CommunicationModule],
        optim_spec: str | OptimSpec | None = None,
        max_norm: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Take the modules, the optimizer (AdamW), and the largest norm of a local gradient."""
        super().__init__(**kwargs)
        self.communication_modules = list(communication_modules)
        self.optim_spec = ensure_optim_spec(optim_spec)
        self.max_norm = max_norm

    def _init_node(self, model: nn.Module, rank: int, num_nodes: int) -> None:
        super()._init_node(model, rank, num_nodes)
        self.optim = self.optim_spec.build(model)
        self._setup_scheduler()

    def _init_exchange(self, model: nn.Module, rank: int, num_nodes: int) -> None:
        super()._init_exchange(model, rank, num_nodes)
        for module in self.communication_modules:
            if isinstance(module, PlannedModule) and self.plan is not None:
                module.plan = self.plan
            module._init_node(model, rank, num_nodes)

    def step(self) -> None:
        """Clip, step, communicate."""
        if self.max_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optim.step()
        for module in self.communication_modules:
            module.communicate(self.model, self.rank, self.num_nodes, self.local_step)
        super().step()

    def state_dict(self) -> dict[str, Any]:
        """Return what the next steps depend on, and each module's."""
        modules = [module.state_dict() for module in self.communication_modules]
        return {"strategy": super().state_dict(), "modules": modules}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` returned."""
        super().load_state_dict(state["strategy"])
        for module, own in zip(self.communication_modules, state["modules"], strict=True):
            module.load_state_dict(own)

    def count_samples(self, samples: int) -> None:
        """Say how many samples the step trained on, before it; for means weighted by samples."""
        for module in self.communication_modules:
            if isinstance(module, PlannedModule):
                module.samples += samples
