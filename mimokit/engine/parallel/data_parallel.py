"""Megatron's data parallel wrapper around one module, and what of the module a rank answers for."""

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from mimokit.axes import Choice
from mimokit.engine.inside_steps import Inside, inside
from mimokit.engine.megatron import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    ProcessGroupCollection,
    TransformerConfig,
)
from mimokit.engine.parallel.full_shards import (
    ShardedLayers,
    ShardedPart,
    set_trained,
    sharded_parts,
)
from mimokit.engine.parallel.gradient_order import GradientOrder
from mimokit.engine.parallel.main_weights import reduced_buckets, shard_states, state_shard
from mimokit.engine.parallel.marks import is_cut, is_expert, is_of_slice, is_tied_copy
from mimokit.engine.parallel.overlap import OverlappedReduction
from mimokit.engine.parallel.sequence import sum_gradients_of_slices
from mimokit.engine.part_times import UNTIMED, PartTimes
from mimokit.planning.execution import ModuleExecution


@dataclass(frozen=True)
class Ownership:
    """Which rank counts, owns and writes what of a module, whatever sizes it is cut by.

    Several ranks have the same tokens, or the same piece of a parameter. A sum over the world, a
    norm and a file need each of them once.

    Attributes:
        groups: Megatron's `ProcessGroupCollection` of the module on this rank.
    """

    groups: Any

    def counts_tokens(self) -> bool:
        """Return whether a sum over the world takes tokens and losses of this rank.

        Tensor parallel ranks have the same tokens, so the first one counts them. Context parallel
        ranks have different ones of the same samples, and each counts.
        """
        return bool(self.groups.tp.rank() == 0)

    def counts_samples(self) -> bool:
        """Return whether a sum over the world takes the samples of this rank, whole."""
        return self.counts_tokens() and bool(self.groups.cp.rank() == 0)

    def reduce_group(self, parameter: torch.Tensor) -> dist.ProcessGroup:
        """Return the ranks with the same piece of a parameter, over which gradients are summed.

        Context parallel ranks are among them: each has the gradient of its part of a sequence.
        """
        group = self.groups.expt_dp if is_expert(parameter) else self.groups.dp_cp
        return group  # type: ignore[no-any-return]

    def writes(self, parameter: torch.Tensor) -> bool:
        """Return whether this rank writes what it holds of a parameter to the file of its place.

        A place is a tensor parallel rank of a stage, and of experts, of those. What several places
        hold whole is in the file of each, so that a reader can compare.
        """
        return self.reduce_group(parameter).rank() == 0

    def owns(self, parameter: torch.Tensor) -> bool:
        """Return whether a norm takes what this rank steps of a parameter: each entry once."""
        tensor_group = self.groups.expt_tp if is_expert(parameter) else self.groups.tp
        first = is_cut(parameter) or tensor_group.rank() == 0
        shard, replicas = state_shard(parameter), self.reduce_group(parameter)
        if shard is None:
            alone = self.writes(parameter)
        else:
            alone = shard.group.size() == replicas.size() or self._in_first_instance()
        return first and not is_tied_copy(parameter) and alone

    def _in_first_instance(self) -> bool:
        instances = getattr(self.groups, "inter_dist_opt", None)
        return instances is None or instances.rank() == 0


class ModuleDataParallel(DistributedDataParallel):  # type: ignore[misc]
    """Megatron's `DistributedDataParallel`, with the attributes of a module that `MimoModel` reads.

    `MimoModel` of 0.16.1 reads `language_model.embedding`, which the wrapper hides.

    Attributes:
        num_tokens: number of unmasked tokens on this rank whose losses are in the gradient buffer.
            A schedule adds those of every micro-batch; `zero_grad_buffer` sets it to 0.
        gradient_order: what is in the gradient buffer.
        loss_scale: what losses are multiplied by for the backward pass.
    """

    num_tokens: float = 0.0
    loss_scale: float = 1.0
    times: PartTimes = UNTIMED

    def __init__(
        self,
        config: TransformerConfig,
        ddp_config: DistributedDataParallelConfig,
        module: torch.nn.Module,
        pg_collection: ProcessGroupCollection,
    ) -> None:
        super().__init__(config, ddp_config, module, pg_collection=pg_collection)
        self.ownership = Ownership(pg_collection)
        if ddp_config.use_distributed_optimizer:
            shard_states(self)
        self._overlapped = OverlappedReduction(self) if ddp_config.overlap_grad_reduce else None
        self.gradient_order = GradientOrder(module.parameters())
        self._sharded: ShardedLayers | None = None

    def shard_layers(self, parts: Sequence[ShardedPart], weights: torch.dtype) -> None:
        """Shard weights and gradients of layers over all ranks with equal ones. Collective.

        Args:
            weights: dtype in which they compute.
        """
        self._sharded = ShardedLayers(self, parts, weights)

    @property
    def shares_layers(self) -> bool:
        """Whether weights of its layers are sharded, and gathered to compute."""
        return self._sharded is not None

    @property
    def gathered_weights(self) -> Set[int]:
        """Addresses of weights that are gathered for the layer that computes."""
        return frozenset() if self._sharded is None else self._sharded.gathered

    def zero_grad_buffer(self) -> None:
        """Set the gradients to zero.

        Raises:
            ValueError: reductions overlap, and some trained parameters had no gradient.
        """
        if self._overlapped is not None:
            self._overlapped.check()
        super().zero_grad_buffer()
        if self._sharded is not None:
            self._sharded.zero()
        self.num_tokens = 0.0
        self.gradient_order.zeroed()
        if self._overlapped is not None:
            self._overlapped.begin()

    @contextlib.contextmanager
    def no_sync(self, part: torch.nn.Module | None = None) -> Iterator[None]:
        """Accumulate gradients without reducing them, of the whole module or of a part of it."""
        if part is None or self._overlapped is None:
            accumulating: AbstractContextManager[None] = super().no_sync()
        else:
            accumulating = self._overlapped.holding(part)
        with accumulating:
            yield

    def finish_grad_sync(self, force_all_reduce: bool | None = False) -> None:
        """Wait until gradients are summed over replicas; those that no backward started start."""
        if self._overlapped is not None:
            self._overlapped.start_rest()
        scatters = self.ddp_config.use_distributed_optimizer and not force_all_reduce
        with inside(Inside.REDUCE_SCATTER if scatters else Inside.ALL_REDUCE):
            super().finish_grad_sync(force_all_reduce)
        if self._sharded is not None:
            self._sharded.finish()

    def reduced_gradients(self) -> Iterator[torch.Tensor]:
        """Yield the reduced gradients that this rank has: all, or its shards; some with padding."""
        yield from reduced_buckets(self)
        if self._sharded is not None:
            yield from self._sharded.gradients()

    def scale_gradients(self, scaling_factor: float) -> None:
        """Multiply the gradients."""
        super().scale_gradients(scaling_factor)
        if self._sharded is not None:
            self._sharded.scale(scaling_factor)

    @property
    def embedding(self) -> torch.nn.Module:
        """The embedding of the wrapped language model."""
        return self.module.embedding  # type: ignore[no-any-return]

    def sum_gradients_of_slices(self) -> None:
        """Add the gradients of all slices of a sequence. Collective over tensor-parallel ranks."""
        sum_gradients_of_slices(self._of_slices, self.ownership.groups.tp)

    @cached_property
    def _of_slices(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.module.parameters() if is_of_slice(parameter)]

    def sync_tied_embeddings(self) -> None:
        """Add the gradients of embeddings that pipeline stages share. Collective over these."""
        sync = getattr(self.module, "sync_tied_embeddings", None)
        if sync is not None:
            sync()

    def update_expert_biases(self) -> None:
        """Move the biases of experts by the tokens of the step. Collective over its ranks."""
        for part in self._with_biases:
            part.update_expert_bias()

    @cached_property
    def _with_biases(self) -> list[Any]:
        return [part for part in self.module.modules() if hasattr(part, "update_expert_bias")]

    def _make_backward_post_hook(self, param: torch.nn.Parameter) -> Callable[..., None]:
        """Return Megatron's hook, which this object keeps and C++ does not.

        A graph of autograd keeps the hooks of its parameters, and a module may keep a graph: a
        `TransformerBlock` does, of its last input. Python's garbage collector does not see such a
        circle, and every layout that ran would stay in memory with its process groups.
        """
        hook = super()._make_backward_post_hook(param)
        self.__dict__.setdefault("_post_hooks", []).append(hook)
        return _while_kept(hook)

    def release(self) -> None:
        """Remove the gradient hooks, and with them what refers to this object in a circle.

        The module cannot be trained afterwards; its process groups end with the last reference.
        """
        self.grad_accs.clear()
        self.__dict__.pop("_post_hooks", None)


def _while_kept(hook: Callable[..., None]) -> Callable[..., None]:
    reference = weakref.ref(hook)

    def call(*arguments: object) -> None:
        kept = reference()
        if kept is not None:
            kept(*arguments)

    return call


def data_parallel_config(execution: ModuleExecution) -> DistributedDataParallelConfig:
    """Return a config that reduces gradients once, in or after the last backward pass."""
    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=execution.gradients == "fp32",
        overlap_grad_reduce=execution.overlap_reduction,
        use_distributed_optimizer=bool(execution.sizes.distributed_optimizer),
        num_distributed_optimizer_instances=execution.size(Choice.OPTIMIZER_INSTANCES),
        check_for_nan_in_grad=False,
    )


def wrap_data_parallel(
    module: torch.nn.Module,
    config: TransformerConfig,
    execution: ModuleExecution,
    groups: ProcessGroupCollection,
) -> ModuleDataParallel:
    """Wrap a module so that its gradients are summed over its data parallel group."""
    if not config.calculate_per_token_loss:
        # Of a spec of the user's: Megatron would average the sums of replicas.
        config = copy.copy(config)
        config.calculate_per_token_loss = True
    ddp_config = data_parallel_config(execution)
    parts = sharded_parts(module, groups) if execution.sizes.fully_sharded else []
    if not parts:
        return ModuleDataParallel(config, ddp_config, module, groups)
    trained = [parameter for part in parts for parameter in part.parameters.values()]
    weights = trained[0].dtype
    set_trained(trained, False)  # what is outside of the layers is reduced as elsewhere
    wrapped = ModuleDataParallel(config, ddp_config, module, groups)
    set_trained(trained, True)
    wrapped.shard_layers(parts, weights)
    return wrapped
