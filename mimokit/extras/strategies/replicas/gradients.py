"""How many numbers of the reduced gradients a rank has: all of them, or its shard.

Where ranks share the states of an optimizer, Megatron puts the gradients of a module into buckets,
in which tensors are aligned, and cuts each bucket into equal parts, one per rank. Layers in full
shards are cut by rows, tensor by tensor.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mimokit.architecture.tensor_cut import ShardPlace
from mimokit.architecture.tensors import ModuleTensor
from mimokit.planning.execution import ModuleExecution

ALIGNMENT = 64
"""A tensor begins at a multiple of so many numbers (Megatron's `_ParamAndGradBuffer`)."""

BUCKET_ALIGNMENT = 128
"""A bucket ends at a multiple of this, and of the ranks that share it."""


class StageGradients:
    """The reduced gradients of what trains on a pipeline stage of a module.

    They are counted with their padding. A module whose reductions overlap has several buckets, each
    of 40 million numbers or more; they count as one, which leaves out the padding of the others.

    Args:
        copied: names of tensors of which another stage has a copy; each has a separate bucket.
    """

    def __init__(
        self,
        tensors: Sequence[ModuleTensor],
        copied: Collection[str],
        execution: ModuleExecution,
    ) -> None:
        self._tensors, self._copied, self._execution = tensors, copied, execution
        self._pieces: dict[ShardPlace, tuple[_Gradients, _Gradients]] = {}

    def on(self, place: ShardPlace) -> int:
        """Return how many numbers a rank has."""
        alike = without_replicas(place)
        if alike not in self._pieces:
            held = [row for row in self._tensors if row.cut.at(alike).is_held]
            dense = [row for row in held if row.cut.expert is None]
            experts = [row for row in held if row.cut.expert is not None]
            sizes = self._execution.sizes
            self._pieces[alike] = (
                self._of(dense, alike, int(sizes.replicas)),
                self._of(experts, alike, int(sizes.expert_replicas)),
            )
        outside, of_experts = self._pieces[alike]
        return outside.on(place.replica) + of_experts.on(place.expert_replica)

    def _of(self, tensors: Sequence[ModuleTensor], place: ShardPlace, replicas: int) -> _Gradients:
        execution = self._execution
        by_rows = execution.fully_sharded and replicas > 1
        rows: list[tuple[int, int]] = []
        copied: list[int] = []
        others: list[int] = []
        for tensor in tensors:
            shape = tensor.cut.at(place).shape
            if by_rows and isinstance(tensor.place, int):
                rows.append((shape[0], math.prod(shape[1:])))
            elif (tensor.copy_of or tensor.name) in self._copied:
                copied.append(math.prod(shape))
            else:
                others.append(math.prod(shape))
        if execution.distributed_optimizer:
            ranks = max(1, replicas // execution.optimizer_instances)
            in_buckets = _part_of_bucket(copied, ranks) + _part_of_bucket(others, ranks)
        else:
            in_buckets = sum(copied) + sum(others)
        return _Gradients(in_buckets, np.array(rows, np.int64).reshape(-1, 2), replicas)


@dataclass(frozen=True, eq=False)
class _Gradients:
    """Gradients that as many ranks have alike, or share.

    Attributes:
        rows: rows and their width of each tensor that is cut by rows, [tensors, 2].
    """

    in_buckets: int
    rows: NDArray[np.int64]
    replicas: int

    def on(self, replica: int) -> int:
        """Return the numbers on one of the ranks; rows are dealt out as `torch.chunk` does."""
        if not len(self.rows):
            return self.in_buckets
        rows, widths = self.rows.T
        each = -(-rows // self.replicas)
        held = np.minimum(each * (replica + 1), rows) - np.minimum(each * replica, rows)
        return self.in_buckets + int((held * widths).sum())


def without_replicas(place: ShardPlace) -> ShardPlace:
    """Return what of a place decides which shards its rank holds."""
    return replace(place, replica=0, expert_replica=0)


def _part_of_bucket(entries: Iterable[int], ranks: int) -> int:
    """Return what each of the ranks has of a bucket of tensors with so many entries."""
    aligned = sum(-(-each // ALIGNMENT) * ALIGNMENT for each in entries)
    multiple = math.lcm(ranks, BUCKET_ALIGNMENT)
    return -(-aligned // multiple) * multiple // ranks
