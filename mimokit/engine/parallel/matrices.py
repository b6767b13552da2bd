"""The matrices of layers, and which part of each this rank steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from mimokit.architecture.tensor_cut import Shape
from mimokit.engine.megatron import TransformerLayer
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.engine.parallel.main_weights import main_weight, state_shard
from mimokit.engine.parallel.marks import is_expert, shard_of


@dataclass(frozen=True)
class CutMatrix:
    """A matrix that ranks share: tensor parallel ones, those with shards of it, or both.

    Attributes:
        group: ranks of (expert) tensor parallelism.
    """

    parameter: torch.nn.Parameter
    group: dist.ProcessGroup

    def gathered(self, own: torch.Tensor) -> torch.Tensor:
        """Return the whole of what each rank has the part that it steps of. Collective."""
        pieces = state_shard(self.parameter)
        local = own if pieces is None else pieces.gathered(own, self.parameter.shape)
        shard = shard_of(self.parameter)
        if not self._is_cut:
            return local
        whole = local.new_zeros(shard.cut.whole)
        for block in shard.rectangles:
            whole[_slices(block.whole, block.shape)] = local[_slices(block.local, block.shape)]
        dist.all_reduce(whole, group=self.group)
        return whole

    def own(self, whole: torch.Tensor) -> torch.Tensor:
        """Return the part of a whole matrix that this rank steps."""
        pieces, local = state_shard(self.parameter), whole
        if self._is_cut:
            local = whole.new_zeros(self.parameter.shape)
            for block in shard_of(self.parameter).rectangles:
                local[_slices(block.local, block.shape)] = whole[_slices(block.whole, block.shape)]
        return local if pieces is None else pieces.of(local)

    @property
    def _is_cut(self) -> bool:
        return shard_of(self.parameter).cut.dimension is not None and self.group.size() > 1


def cut_matrices(module: ModuleDataParallel) -> dict[torch.nn.Parameter, CutMatrix]:
    """Return what is stepped of the matrices of a module's layers that train, and how it is cut."""
    groups = module.ownership.groups
    return {
        main_weight(matrix): CutMatrix(matrix, groups.expt_tp if is_expert(matrix) else groups.tp)
        for matrix in layer_matrices(module)
    }


def layer_matrices(module: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """Yield the matrices of the transformer layers of a module that train."""
    for layer in module.modules():
        if isinstance(layer, TransformerLayer):
            yield from (p for p in layer.parameters() if p.requires_grad and p.dim() == 2)


def _slices(begin: Shape, lengths: Shape) -> tuple[slice, ...]:
    return tuple(slice(a, a + n) for a, n in zip(begin, lengths, strict=True))
