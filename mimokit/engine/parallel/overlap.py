"""Reductions of gradients that start during a backward pass, in one order on all replicas."""

from __future__ import annotations

from functools import partial
from typing import Any

from mimokit.engine.megatron import DistributedDataParallel


class OverlappedReduction:
    """Starts the reductions of a module's buckets in their order, whatever is complete first.

    Megatron starts one as soon as its gradients are complete, and one that has none, in a replica
    without inputs, never. Ranks would then pair the reductions of different buckets. Here a bucket
    waits for those before it, and `start_rest` starts all that are left.

    In its first backward Megatron starts none: it learns how many gradients a bucket gets.
    """

    def __init__(self, module: DistributedDataParallel) -> None:
        self._groups = [
            _InOrder(groups)
            for groups in (module.bucket_groups, module.expert_parallel_bucket_groups)
        ]

    def begin(self) -> None:
        """Begin a step."""
        for groups in self._groups:
            groups.begin()

    def start_rest(self) -> None:
        """Start what the backward pass did not, on all ranks or on this one alone."""
        for groups in self._groups:
            groups.start_rest()


class _InOrder:
    """The buckets of one process group.

    Args:
        groups: Megatron's groups of buckets, whose `start_grad_sync` this takes the place of.
    """

    def __init__(self, groups: list[Any]) -> None:
        self._groups = groups
        self._starts = [group.start_grad_sync for group in groups]
        for number, group in enumerate(groups):
            group.start_grad_sync = partial(self._complete, number)
        self.begin()

    def begin(self) -> None:
        self._completed: set[int] = set()
        self._started = 0

    def _complete(self, number: int, force_all_reduce: bool | None = False) -> None:
        """Note that the gradients of a bucket are complete, and start what can start."""
        self._completed.add(number)
        while self._started in self._completed:
            self._starts[self._started](force_all_reduce=force_all_reduce)
            self._started += 1

    def start_rest(self) -> None:
        for number in range(self._started, len(self._groups)):
            self._complete(number)
