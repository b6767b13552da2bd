"""Optimizers over the gradients that Megatron's DDP reduced, and the learning rate of a run."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from mimokit.config import ExperimentSections, RuntimeConfig
from mimokit.engine.optimizers import OPTIMIZERS
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.engine.parallel.gradient_order import same_order
from mimokit.engine.parallel.main_weights import main_weight, reduced_gradient, round_main_weights
from mimokit.engine.part_times import UNTIMED, StepPart


def learning_rate_scheduler(optimizer: torch.optim.Optimizer, runtime: RuntimeConfig) -> LambdaLR:
    """Return the scheduler of a run: linear warm-up, constant, linear decay."""
    return LambdaLR(optimizer, partial(_share_of_rate, runtime))


def _share_of_rate(runtime: RuntimeConfig, iteration: int) -> float:
    """Return the factor of the learning rate in an iteration (0-based)."""
    share = 1.0
    if runtime.learning_rate_warmup:
        share = min(share, (iteration + 1) / runtime.learning_rate_warmup)
    if runtime.learning_rate_decay:
        left = max(runtime.num_iterations - iteration, 0)
        share = min(share, left / runtime.learning_rate_decay)
    return share


@contextlib.contextmanager
def reduced_gradients(
    optimizer: torch.optim.Optimizer, of_model: Mapping[torch.nn.Parameter, torch.nn.Parameter]
) -> Iterator[None]:
    """Let `.grad` of what an optimizer steps be what DDP reduced, until the end of the block.

    Args:
        of_model: main weight -> the parameter that it is of.

    Raises:
        RuntimeError: if a parameter has no such gradient: its module was not wrapped.
    """
    groups = optimizer.param_groups
    stepped = [p for group in groups for p in group["params"] if p.requires_grad]
    for main in stepped:
        main.grad = reduced_gradient(of_model.get(main, main))
        if main.grad is None:
            raise RuntimeError(
                f"A parameter of shape {tuple(main.shape)} has no main_grad; wrap its "
                "module in data parallel before creating the optimizer."
            )
    yield
    # Left in place, `.grad` would make DDP's hook add the next gradient twice.
    for main in stepped:
        main.grad = None


def set_epsilon(optimizer: torch.optim.Optimizer, epsilon: float) -> None:
    """Replace the epsilon of an optimizer of torch, if it has one."""
    for group in optimizer.param_groups:
        if "eps" in group:
            group["eps"] = epsilon


class MainGradOptimizer(torch.optim.Optimizer):
    """Steps on `main_grad`; the class of torch that it is mixed into has the rule.

    Megatron's DDP keeps the reduced gradient in `parameter.main_grad` and leaves `.grad` None; an
    ordinary optimizer then skips every parameter silently. It may have no parameters, as on a rank
    with only frozen modules.

    Of parameters of fewer bits than fp32, or whose states are sharded, it steps the main weights,
    which are in `param_groups`. A sharded one may have no entries on this rank.

    Attributes:
        of_model: main weight -> the parameter that it is of.
    """

    reads_main_grad = True

    def __init__(self, parameters: Iterable[torch.nn.Parameter], **options: Any) -> None:
        self.of_model: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
        super().__init__([{"params": list(parameters)}], **options)
        self._owners: list[ModuleDataParallel | None] = [None]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; of what is sharded or not fp32 the main weights are stepped."""
        stepped = []
        for parameter in param_group["params"]:
            main = main_weight(parameter)
            if main is not parameter:
                same_order(main, parameter)
                self.of_model[main] = parameter
            stepped.append(main)
        super().add_param_group({**param_group, "params": stepped})

    def add_module(self, module: ModuleDataParallel, **options: Any) -> None:
        """Add the trained parameters of a module; `options`, as lr, replace those of the run.

        Modules are stepped one after another, so that each can be timed.
        """
        trained = [p for p in module.parameters() if p.requires_grad]
        self.add_param_group({"params": trained, **options})
        self._owners.append(module)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter from its `main_grad`.

        Raises:
            RuntimeError: if a trainable parameter has none: its module was not wrapped.
        """
        with reduced_gradients(self, self.of_model):
            self._step_groups()
        self.round_main_weights()

    def round_main_weights(self) -> None:
        """Make parameters their main weights, rounded. Collective where states are sharded."""
        round_main_weights(self.of_model.values())

    def _step_groups(self) -> None:
        groups = self.param_groups
        try:
            for group, owner in zip_longest(groups, self._owners):
                if not group["params"]:
                    continue
                self.param_groups = [group]
                with (UNTIMED if owner is None else owner.times).part(StepPart.UPDATE):
                    super().step()
        finally:
            self.param_groups = groups


class MainGradAdamW(MainGradOptimizer, torch.optim.AdamW):
    """AdamW that steps on `main_grad`."""


def on_main_grad(rule: type[torch.optim.Optimizer]) -> type[MainGradOptimizer]:
    """Return an optimizer of torch as one that steps on `main_grad`."""
    if rule is torch.optim.AdamW:
        return MainGradAdamW
    return type(f"MainGrad{rule.__name__}", (MainGradOptimizer, rule), {})


@dataclass(frozen=True)
class OptimizerSpec:
    """A class of torch, and its arguments."""

    cls: type[torch.optim.Optimizer]
    kwargs: dict[str, Any]


def optimizer_spec(config: ExperimentSections) -> OptimizerSpec:
    """Return what steps the weights of a run: AdamW, or the inner optimizer of its strategy.

    A learning rate that the inner optimizer leaves out is that of the run, of AdamW weight decay
    and epsilon, too.
    """
    runtime = config.inner_runtime
    inner = None if config.strategy is None else config.strategy.inner_optimizer
    rule: type[torch.optim.Optimizer] = torch.optim.AdamW
    options: dict[str, Any] = {}
    if inner is not None:
        rule = OPTIMIZERS[inner.name]
        options = inner.model_dump(exclude_none=True, exclude={"name"})
    options["lr"] = runtime.learning_rate
    if rule is torch.optim.AdamW:
        options |= {"weight_decay": runtime.weight_decay, "eps": runtime.adam_epsilon}
    return OptimizerSpec(rule, options)
