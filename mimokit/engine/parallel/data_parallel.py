"""Megatron's data parallel wrapper around one module of a multi-module model."""

from __future__ import annotations

import copy

import torch

from mimokit.engine.megatron import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    ProcessGroupCollection,
    TransformerConfig,
)
from mimokit.engine.parallel.gradient_order import GradientOrder
from mimokit.engine.parallel.ownership import Ownership
from mimokit.engine.part_times import UNTIMED, PartTimes
from mimokit.planning.execution import ModuleExecution


class ModuleDataParallel(DistributedDataParallel):  # type: ignore[misc]
    """Megatron's `DistributedDataParallel`, with the attributes of a module that `MimoModel` reads.

    `MimoModel` of 0.16.1 reads `language_model.embedding`, which the wrapper hides.

    Attributes:
        num_tokens: number of unmasked tokens on this rank whose losses are in the gradient buffer.
            A schedule adds those of every micro-batch; `zero_grad_buffer` sets it to 0.
        ownership: what of the module this rank counts, owns and writes.
        gradient_order: what is in the gradient buffer.
        times: of its reduction and its update.
    """

    num_tokens: float = 0.0
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
        self.gradient_order = GradientOrder(module.parameters())

    def zero_grad_buffer(self) -> None:
        """Set the gradients to zero."""
        super().zero_grad_buffer()
        self.num_tokens = 0.0
        self.gradient_order.zeroed()

    @property
    def embedding(self) -> torch.nn.Module:
        """The embedding of the wrapped language model."""
        return self.module.embedding  # type: ignore[no-any-return]

    def sync_tied_embeddings(self) -> None:
        """Add the gradients of embeddings that the wrapped module ties over pipeline stages.

        Collective over the stages that share them; nothing happens where none do.
        """
        sync = getattr(self.module, "sync_tied_embeddings", None)
        if sync is not None:
            sync()

    def release(self) -> None:
        """Remove the gradient hooks; the module cannot be trained afterwards.

        Hooks and module refer to each other through C++, where Python's garbage collector does not
        see them. Without this, every layout that ran would stay in memory with its process groups.
        """
        self.grad_accs.clear()


def data_parallel_config(execution: ModuleExecution) -> DistributedDataParallelConfig:
    """Return a config that reduces gradients once, after the last micro-batch."""
    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=execution.gradients == "fp32",
        overlap_grad_reduce=False,
        use_distributed_optimizer=execution.distributed_optimizer,
        num_distributed_optimizer_instances=execution.optimizer_instances,
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
    return ModuleDataParallel(config, data_parallel_config(execution), module, groups)
