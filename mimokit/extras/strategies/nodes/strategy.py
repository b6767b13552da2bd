"""`Strategy`: how a node's weights are optimized and exchanged; `SimpleReduceStrategy`.

Unknown arguments of a strategy are rejected, with the name that is meant.
"""

import difflib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from mimokit.config.errors import ConfigError, Problem
from mimokit.config.strategy import StrategyConfig
from mimokit.extras.strategies.exchanges import StrategyPlan, plan_strategy
from mimokit.extras.strategies.nodes import communicate
from mimokit.extras.strategies.nodes.buckets import Bucket, common_dtype, shapes_of, trainable
from mimokit.extras.strategies.nodes.optim import OptimSpec, build_scheduler, ensure_optim_spec
from mimokit.extras.strategies.nodes.state import state_of, take_state


class Strategy(ABC):
    """One node's rule. A subclass builds `self.optim`, and ends its `step` with `super().step()`.

    Attributes:
        config: what `StrategyPlan` is made from; None for strategies that plan nothing.
        plan: who exchanges what, from `_init_node` on.
        max_steps: steps of the run, if the caller has said so.
    """

    optim: torch.optim.Optimizer

    def __init__(
        self,
        lr_scheduler: str | type[LRScheduler] | None = None,
        lr_scheduler_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take the scheduler: "lambda_cosine" or a class of torch, and its arguments.

        Raises:
            UnknownArgumentError: any other argument; names the right one.
        """
        reject_unknown(type(self), kwargs)
        self.lr_scheduler = lr_scheduler
        self.lr_scheduler_kwargs = dict(lr_scheduler_kwargs or {})
        self.config: StrategyConfig | None = None
        self.plan: StrategyPlan | None = None
        self.scheduler: LRScheduler | None = None
        self.max_steps: int | None = None
        self.seed = 42
        self.local_step = 0
        self.ledger = communicate.Ledger()

    def _init_node(self, model: nn.Module, rank: int, num_nodes: int) -> None:
        self._init_exchange(model, rank, num_nodes)

    def _init_exchange(self, model: nn.Module, rank: int, num_nodes: int) -> None:
        self.model, self.rank, self.num_nodes, self.local_step = model, rank, num_nodes, 0
        self.ledger = communicate.start_ledger()
        self.ledger.step = 1
        self.plan = self.plan_for(model, num_nodes, self.seed)

    def plan_for(self, model: nn.Module, num_nodes: int, seed: int) -> StrategyPlan | None:
        """Return the plan that all nodes make; None for strategies that plan nothing."""
        if self.config is None:
            return None
        named = trainable(model)
        shapes, size = shapes_of(model, named), common_dtype(named.values()).itemsize
        return plan_strategy(self.config, shapes, num_nodes, seed, element_bytes=size)

    def _setup_scheduler(self) -> None:
        arguments = self.lr_scheduler_kwargs
        self.scheduler = build_scheduler(self.lr_scheduler, self.optim, arguments, self.max_steps)

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""
        self.optim.zero_grad()

    @abstractmethod
    def step(self) -> None:
        """Advance the scheduler and count the step. Optimizing and exchanging come before."""
        if self.scheduler is not None:
            self.scheduler.step()
        self.local_step += 1
        self.ledger.step = self.local_step + 1

    def state_dict(self) -> dict[str, Any]:
        """Return what the next steps depend on, apart from the weights; see `state_of`."""
        return state_of(self, without=("max_steps",))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on, on a node that has begun, from what `state_dict` returned."""
        take_state(self, state)

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self.optim.param_groups[0]["lr"])


class SimpleReduceStrategy(Strategy):
    """The mean of the gradients of all nodes in each step, as data parallelism does it."""

    def __init__(
        self,
        optim_spec: str | OptimSpec | None = None,
        max_norm: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Take the optimizer (AdamW), and the largest norm of the averaged gradient."""
        super().__init__(**kwargs)
        self.optim_spec = ensure_optim_spec(optim_spec)
        self.max_norm = max_norm
        self.config = StrategyConfig(name="simple_reduce")

    def _init_node(self, model: nn.Module, rank: int, num_nodes: int) -> None:
        super()._init_node(model, rank, num_nodes)
        self.optim = self.optim_spec.build(model)
        self._setup_scheduler()
        self._parameters = list(trainable(model).values())
        self._bucket = Bucket(self._parameters)

    def step(self) -> None:
        """Average the gradients, clip, step."""
        if self.num_nodes > 1:
            mean_of_gradients(self._parameters, self._bucket, self.num_nodes)
        if self.max_norm:
            nn.utils.clip_grad_norm_(self._parameters, self.max_norm)
        self.optim.step()
        super().step()


@torch.no_grad()
def mean_of_gradients(parameters: list[nn.Parameter], bucket: Bucket, num_nodes: int) -> None:
    """Average gradients over all nodes in one collective.

    A parameter that has a gradient on no node keeps none, so that no optimizer moves it; a
    gradient that is missing on some nodes only counts as 0 there. Missing gradients travel as
    -0.0: a sum is -0.0 only if every summand is. Of small tensors the calls take longer than the
    numbers, so the marks of all are set and read in one call.
    """
    flat, firsts, pairs = bucket.flat, bucket.firsts, zip(bucket.views, parameters, strict=True)
    missing = []
    for view, parameter in pairs:
        if parameter.grad is None:
            missing.append(view)
        else:
            view.copy_(parameter.grad)
    flat.index_copy_(0, firsts, flat.index_select(0, firsts).add_(0.0))  # turns -0.0 into 0.0
    for view in missing:
        view.fill_(-0.0)
    communicate.all_reduce(flat)
    marks = iter(flat.index_select(0, firsts).tolist())
    for view, parameter in zip(bucket.views, parameters, strict=True):
        if not view.numel() or _is_negative_zero(next(marks)):
            continue
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        torch.div(view, num_nodes, out=parameter.grad)


def are_absent(views: list[Tensor]) -> list[bool]:
    """Return of each tensor whether it begins with -0.0, the mark of a missing gradient."""
    if not any(view.numel() for view in views):
        return [True] * len(views)
    firsts = iter(torch.stack([view.view(-1)[0] for view in views if view.numel()]).tolist())
    return [not view.numel() or _is_negative_zero(next(firsts)) for view in views]


def _is_negative_zero(number: float) -> bool:
    return number == 0 and str(number).startswith("-")


MEANT: Mapping[str, str] = {
    "inner_optim": "optim_spec",
    "inner_optim_spec": "optim_spec",
    "inner_optimizer": "optim_spec",
    "optimizer": "optim_spec",
    "outer_optim": "outer_optim_spec",
    "outer_optimizer": "outer_optim_spec",
    "p": "p_sparta",
    "h": "H",
}
"""Other names for the same, as people write them."""


class UnknownArgumentError(ConfigError, TypeError):
    """A strategy has no such argument; names the right one."""


def reject_unknown(kind: type, unknown: Mapping[str, Any]) -> None:
    """Raise UnknownArgumentError for arguments that no constructor of a class takes."""
    if not unknown:
        return
    known = sorted(
        {
            name
            for base in kind.__mro__
            if "__init__" in vars(base) and base is not object
            for name, parameter in inspect.signature(base).parameters.items()
            if parameter.kind is not parameter.VAR_KEYWORD and name != "communication_modules"
        }
    )
    problems = []
    for name, value in unknown.items():
        meant = MEANT.get(name)
        nearest = (
            [meant] if meant in known else difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        )
        right = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(known)}."
        sentence = f"{kind.__name__}: unknown argument {name}; {right}"
        problems.append(Problem("strategy", name, value, sentence))
    raise UnknownArgumentError(problems)
