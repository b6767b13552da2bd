"""Reductions of gradients that start during a backward pass, in one order on all replicas."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from mimokit.engine.megatron import CPU_ONLY, DistributedDataParallel


class OverlappedReduction:
    """Starts the reductions of a module's buckets in their order, whatever is complete first.

    Megatron starts one as soon as its gradients are complete, and one that has none, in a replica
    without inputs, never. Ranks would then pair the reductions of different buckets. Here a bucket
    waits for those before it, and `start_rest` starts all that are left.

    In its first backward Megatron starts none: it learns how many gradients a bucket gets.

    The chunks of an interleaved pipeline have their last backward one after another, and a bucket
    may have parameters of two: which gradients are complete is asked per parameter.

    Between several instances of an optimizer Megatron reduces on a stream of CUDA. Without one it
    would wait in the backward pass for a replica without inputs, which starts its reductions after
    the update of all modules has begun: `start_rest` starts all of them there.
    """

    def __init__(self, module: DistributedDataParallel) -> None:
        waits = CPU_ONLY and module.ddp_config.num_distributed_optimizer_instances > 1
        self._groups = [
            _InOrder(groups, waits)
            for groups in (module.bucket_groups, module.expert_parallel_bucket_groups)
        ]
        self._accumulating: set[torch.Tensor] = set()
        for group in (*module.bucket_groups, *module.expert_parallel_bucket_groups):
            group.register_grad_ready = partial(self._ready, group.register_grad_ready)

    @contextlib.contextmanager
    def holding(self, part: torch.nn.Module) -> Iterator[None]:
        """Take no gradient of a part of the module as complete."""
        parameters = set(part.parameters())
        self._accumulating |= parameters
        try:
            yield
        finally:
            self._accumulating -= parameters

    def _ready(
        self, register: Callable[..., None], parameter: torch.Tensor, *options: bool
    ) -> None:
        if parameter not in self._accumulating:
            register(parameter, *options)

    def begin(self) -> None:
        """Begin a step."""
        for groups in self._groups:
            groups.begin()

    def check(self) -> None:
        """Reject a backward pass that gave a part of a bucket no gradients.

        Raises:
            ValueError: Megatron would wait for them in all later steps.
        """
        for groups in self._groups:
            groups.check()

    def start_rest(self) -> None:
        """Start what the backward pass did not, on all ranks or on this one alone."""
        for groups in self._groups:
            groups.start_rest()


class _InOrder:
    """The buckets of one process group.

    Args:
        groups: Megatron's groups of buckets, whose `start_grad_sync` this takes the place of.
        waits: whether to start a reduction is to wait for the other ranks.
    """

    def __init__(self, groups: list[Any], waits: bool) -> None:
        self._groups, self._waits = groups, waits
        self._starts = [group.start_grad_sync for group in groups]
        for number, group in enumerate(groups):
            group.start_grad_sync = partial(self._complete, number)
        self.begin()

    def begin(self) -> None:
        self._completed: set[int] = set()
        self._started = 0

    def _complete(self, number: int, force_all_reduce: bool | None = False) -> None:
        self._completed.add(number)
        while not self._waits and self._started in self._completed:
            self._start_next(force_all_reduce)

    def _start_next(self, force_all_reduce: bool | None = False) -> None:
        self._starts[self._started](force_all_reduce=force_all_reduce)
        self._started += 1

    def check(self) -> None:
        for group in self._groups:
            given, trained = len(group.per_param_grad_ready_counts), len(group.params)
            if 0 < given < trained:
                raise ValueError(
                    f"The last backward pass gave {given} of {trained} parameters of a bucket a "
                    "gradient, and overlap_grad_reduce needs one of each that is trained; freeze "
                    "the others, or leave overlap_grad_reduce out."
                )

    def start_rest(self) -> None:
        while self._started < len(self._groups):
            self._start_next()
