"""The update of a step: summed gradients, their norm, clipped, become new weights.

The functions at the top are those that a user's own loop calls.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from mimokit.config import ExperimentSections, RuntimeConfig
from mimokit.engine.device import rank_device
from mimokit.engine.megatron import HyperCommGrid, scale_auxiliary_losses
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.engine.parallel.loss import one_over
from mimokit.engine.parallel.loss_scale import LossScale
from mimokit.engine.parallel.main_weights import main_weight, reduced_gradient, round_main_weights
from mimokit.engine.parallel.optimizer import (
    MainGradOptimizer,
    learning_rate_scheduler,
    on_main_grad,
    optimizer_spec,
    set_epsilon,
)
from mimokit.engine.part_times import StepPart
from mimokit.engine.steps import Step, StepGenerator, loop_watcher
from mimokit.planning.types import LayoutPlan
from mimokit.step_kinds import StepKind

if TYPE_CHECKING:
    from mimokit.engine.run_of_rank import Peers

ModuleToGridTuple = tuple[tuple[ModuleDataParallel, HyperCommGrid], ...]


class ModulesOnRank(Protocol):
    """The modules that a rank holds; see `SeededMimoModel` and `MimoModelOnRank`."""

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Yield the modules with their names: encoders, language model, decoders."""


def get_module_to_grid_tuple(
    mimo_model: ModulesOnRank, module_to_grid_map: Mapping[str, HyperCommGrid]
) -> ModuleToGridTuple:
    """Pair every module on this rank with its grid."""
    return tuple((module, module_to_grid_map[name]) for name, module in mimo_model.parts())


@contextlib.contextmanager
def multimodule_no_sync(
    modules: ModuleToGridTuple, iteration: int = 0, num_microbatches: int = 1
) -> Iterator[None]:
    """Accumulate gradients of all modules without reducing them.

    The schedules enter it for every micro-batch except the last. Around an optimizer step, where
    the source documents have it, it changes nothing. The numbers that they pass are not used.
    """
    with contextlib.ExitStack() as stack:
        for module, _ in modules:
            stack.enter_context(module.no_sync())
        yield


def finalize_model_grads(
    modules: ModuleToGridTuple, iteration: int = 0, num_microbatches: int = 1
) -> float:
    """Sum gradients over data parallel ranks and divide by the global token count. Collective.

    Call it after the last micro-batch, before the optimizer step. Tied embeddings on two pipeline
    stages, and gradients of slices of a sequence, are added as well, and biases of experts are
    moved. Dividing by the sum of `ModuleDataParallel.num_tokens` over all ranks makes the step the
    gradient of the mean loss per token, whatever the data parallel sizes are.

    Args:
        iteration: accepted because the documents pass it; not used.
        num_microbatches: accepted because the documents pass it; not used.

    Returns:
        The global token count; gradients stay unscaled where it is zero.
    """
    watcher = loop_watcher()
    if watcher is not None:
        watcher.observe(Step(StepKind.GRAD_SYNC))
    on_rank = sum(module.num_tokens for module, _ in modules if module.ownership.counts_tokens())
    count = torch.tensor([on_rank], dtype=torch.float64, device=rank_device())
    dist.all_reduce(count)
    total: float = count.item()  # waits for the device: the scale is a number of Python
    for module, _ in modules:
        with module.times.part(StepPart.REDUCTION):
            module.finish_grad_sync()
            module.sum_gradients_of_slices()
            module.sync_tied_embeddings()
            module.update_expert_biases()
        module.scale_gradients(one_over(total))
        module.gradient_order.reduced()
    if watcher is not None:
        watcher.pause()
    return total


def zero_grad_buffer_for_multimodule(modules: ModuleToGridTuple) -> None:
    """Set the gradient buffers of all modules to zero."""
    for module, _ in modules:
        module.zero_grad_buffer()


class DivergedError(ArithmeticError):
    """The gradients are not finite."""


class MainGradUpdate:
    """Steps fp32 weights by the fp32 `main_grad`, of which a rank has all or its shard.

    Weights of fewer bits have main weights in fp32, which are stepped and rounded. The layout has
    one replica; `update_of_replica` returns a subclass that exchanges with others, in what does
    nothing here.

    The loop calls once per step, in this order: `zero`, forward and backward of all micro-batches,
    `reduce`, `exchange_gradients`, `norm`, `clip`, `step`, `exchange_weights`. `reduce`, `norm` and
    `step` are collective over the world.

    Attributes:
        loss_scale: in fp16; None: losses are not scaled.
        peers: this rank in other replicas of the layout; None: there is one replica.
    """

    peers: "Peers | None" = None

    def __init__(
        self,
        modules: ModuleToGridTuple,
        optimizer: MainGradOptimizer,
        runtime: RuntimeConfig,
        loss_scale: LossScale | None = None,
    ) -> None:
        """Take the modules of this rank and an optimizer over their parameters.

        Args:
            loss_scale: in fp16. A step whose gradients overflow is left out then.
        """
        self._modules, self._runtime = modules, runtime
        self.loss_scale = loss_scale
        self._overflowed = False
        self.optimizer = optimizer
        self._scheduler = learning_rate_scheduler(optimizer, runtime)

    def zero(self) -> None:
        """Set the gradient buffers to zero, and the scale of the losses of this step."""
        zero_grad_buffer_for_multimodule(self._modules)
        if self.loss_scale is not None:
            for module, _ in self._modules:
                module.loss_scale = self.loss_scale.value
            scale_auxiliary_losses(self.loss_scale.value)

    def reduce(self) -> float:
        """Sum over data parallel ranks; see `finalize_model_grads`."""
        tokens = finalize_model_grads(self._modules)
        if self.loss_scale is not None:
            for module, _ in self._modules:
                module.scale_gradients(1.0 / self.loss_scale.value)
        return tokens

    def squared_norm(self) -> torch.Tensor:
        """Return this rank's share of the squared norm, [1]; the sum over all ranks is all of it.

        The squared norms of modules are added: norms 3 and 4 give 5.
        """
        total = torch.zeros(1, dtype=torch.float32, device=rank_device())
        for parameters in self._owned:
            of_module = torch.zeros_like(total)
            for parameter in parameters:
                gradient = reduced_gradient(parameter)
                assert gradient is not None
                of_module += gradient.float().pow(2).sum()
            total += of_module
        return total

    @cached_property
    def _owned(self) -> list[list[torch.nn.Parameter]]:
        return [
            [p for p in module.parameters() if p.requires_grad and module.ownership.owns(p)]
            for module, _ in self._modules
        ]

    def norm(self) -> float:
        """Return the norm over all modules, the same on every rank.

        Raises:
            DivergedError: it is not finite, on all ranks alike, and losses are not scaled.
        """
        total = self.squared_norm()
        dist.all_reduce(total)
        norm = float(total.sqrt().item())
        self._overflowed = not math.isfinite(norm)
        if self._overflowed and self.loss_scale is None:
            raise DivergedError(
                f"The gradient norm of iteration {self._scheduler.last_epoch} is {norm}, and its "
                "weights are left as they were; lower runtime.learning_rate (it is "
                f"{self._runtime.learning_rate:g}), or look at the samples of that iteration."
            )
        return norm

    def clip(self, norm: float) -> None:
        """Scale all gradients by clip_grad / (norm + 1e-6) where the norm exceeds clip_grad.

        The constant is Megatron's (`megatron.core.optimizer.clip_grads`). A clip_grad of 0 clips
        nothing.
        """
        scale = self._runtime.clip_grad / (norm + 1e-6)
        if not 0 < scale < 1:
            return
        for module, _ in self._modules:
            with module.times.part(StepPart.UPDATE):
                module.scale_gradients(scale)

    def step(self) -> None:
        """Step the optimizer, then the learning rates; neither where gradients overflowed."""
        if self.loss_scale is not None:
            self.loss_scale.update(self._overflowed)
        if self._overflowed:
            return
        self.optimizer.step()
        self._scheduler.step()

    def exchange_gradients(self) -> StepGenerator[None]:
        """Yield the steps in which replicas exchange gradients: none."""
        yield from ()

    def exchange_weights(self) -> StepGenerator[None]:
        """Yield the steps in which replicas exchange weights: none."""
        yield from ()

    def stops(self, stop: bool) -> bool:
        """Return whether all replicas stop after a step, if some rank was asked to."""
        return stop

    def end(self) -> None:
        """Wait for exchanges that go on in the background: there are none."""

    def exchanged(self) -> dict[str, torch.Tensor]:
        """Return what the next exchanges depend on."""
        return {}

    def go_on_exchanging(self, step: int, saved: Mapping[str, torch.Tensor]) -> None:
        """Go on after so many steps from what `exchanged` returned."""

    def publish(self) -> None:
        """Round main weights into their parameters."""
        round_main_weights(self._of_model.values())

    @cached_property
    def _of_model(self) -> dict[torch.nn.Parameter, torch.nn.Parameter]:
        """Main weight -> the parameter that it is of."""
        parameters = (p for module, _ in self._modules for p in module.parameters())
        return {main_weight(p): p for p in parameters if p.requires_grad}

    def set_epsilon(self, epsilon: float) -> None:
        """Replace the epsilon of all groups of the optimizer."""
        set_epsilon(self.optimizer, epsilon)

    counters = frozenset({"step"})
    """States of an optimizer of torch that are one number per parameter."""

    def progress(self) -> dict[str, Any]:
        """Return what the next steps depend on, apart from weights and states of parameters."""
        return {
            "learning_rate_steps": self._scheduler.last_epoch,
            "loss_scale": None if self.loss_scale is None else self.loss_scale.state_dict(),
        }

    def go_on(self, progress: Mapping[str, Any]) -> None:
        """Go on from what `progress` returned, with the weights and the states of that moment.

        Raises:
            ValueError: the losses of one are scaled and those of the other are not.
        """
        scale = progress["loss_scale"]
        if (scale is None) != (self.loss_scale is None):
            scaled = "of this run are not scaled" if scale else "that were saved were not scaled"
            raise ValueError(f"the losses {scaled}, and the others are; use the same precision")
        if self.loss_scale is not None:
            self.loss_scale.load_state_dict(scale)
        schedule, steps = self._scheduler, int(progress["learning_rate_steps"])
        counted = {"last_epoch": steps, "_step_count": steps + 1}
        schedule.load_state_dict({**schedule.state_dict(), **counted})
        shares = (share(steps) for share in schedule.lr_lambdas)
        rates = [base * share for base, share in zip(schedule.base_lrs, shares, strict=True)]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self.publish()


def update_of_run(
    config: ExperimentSections,
    plan: LayoutPlan,
    modules: Mapping[str, ModuleDataParallel],
    grids: Mapping[str, HyperCommGrid],
    kind: Callable[..., MainGradUpdate] = MainGradUpdate,
) -> MainGradUpdate:
    """Return what steps the modules of this rank, each by the rates that are planned for it.

    Args:
        kind: takes the arguments of `MainGradUpdate`.
    """
    spec = optimizer_spec(config)
    fused = {"fused": True} if spec.cls is torch.optim.AdamW else {}
    optimizer = on_main_grad(spec.cls)([], **spec.kwargs, **fused)
    for name, module in modules.items():
        optimizer.add_module(module, **plan.executions[name].optimizer_options)
    pairs = tuple((module, grids[name]) for name, module in modules.items())
    runtime = config.inner_runtime
    in_fp16 = any(execution.weights == "fp16" for execution in plan.executions.values())
    loss_scale = LossScale(runtime.initial_loss_scale) if in_fp16 else None
    return kind(pairs, optimizer, runtime, loss_scale)
