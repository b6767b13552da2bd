"""Layers whose weights and gradients are sharded over replicas (FSDP2).

Each layer is sharded alone, by torch's `fully_shard` (Zhao et al. 2023, arXiv:2304.11277): before
it computes, forward or backward, all ranks of the group gather its weights; after its backward its
gradient is scattered, in every micro-batch. What is outside the layers is reduced as elsewhere.
The experts of a layer are sharded alone, over the ranks with the same ones.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from mimokit.engine.device import rank_device
from mimokit.engine.megatron import (
    DistributedDataParallel,
    ProcessGroupCollection,
    TransformerLayer,
)
from mimokit.engine.parallel.main_weights import StateShard, on_rank, set_shard, state_shard
from mimokit.engine.parallel.marks import is_expert

_COMPUTED_IN = "computed_in"
"""Attribute of a parameter whose shards have more bits than layers compute in."""


@dataclass(frozen=True)
class RowShard(StateShard):
    """The rows of a parameter that this rank holds; the parameter is a `DTensor` of all rows."""

    gathers_weights = False

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the entries of this rank, [entries], of a whole tensor or of a `DTensor`."""
        own = on_rank(tensor)
        return super().of(tensor) if own is tensor else own.reshape(-1)


class ShardedLayers:
    """The layers of a module that `fully_shard` has sharded.

    Args:
        module: the wrapped module, which reduces no gradients of the parts.
        parts: what is sharded, see `sharded_parts`.
        weights: dtype in which the layers compute; their shards are fp32 and are stepped.
    """

    def __init__(
        self, module: DistributedDataParallel, parts: Sequence[ShardedPart], weights: torch.dtype
    ) -> None:
        self._parameters: list[Any] = []
        self.gathered: set[int] = set()
        for part in parts:
            self._shard(part, weakref.ref(module), weights)

    def _shard(
        self,
        part: ShardedPart,
        reference: weakref.ref[DistributedDataParallel],
        weights: torch.dtype,
    ) -> None:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        device, own = rank_device().type, part.parameters
        policy = MixedPrecisionPolicy(
            param_dtype=None if weights == torch.float32 else weights,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
        marks = {name: vars(parameter).copy() for name, parameter in own.items()}
        for parameter in own.values():
            parameter.data = parameter.data.float()
        others = set(part.module.parameters()).difference(own.values())
        sharded: Any = fully_shard(
            part.module,
            mesh=DeviceMesh.from_group(part.group, device, mesh_dim_names=("replicas",)),
            reshard_after_forward=True,
            mp_policy=policy,
            ignored_params={other for other in others if state_shard(other) is None},
        )
        # Otherwise gradients would be the mean over replicas, not their sum.
        sharded.set_force_sum_reduction_for_comms(True)
        sharded.set_gradient_divide_factor(1.0)
        for name, parameter in part.parameters_named(own).items():
            vars(parameter).update(marks[name], **{_COMPUTED_IN: weights})
            set_shard(parameter, _rows(parameter, part.group, reference))
            self._parameters.append(parameter)
        part.module.register_forward_pre_hook(partial(self._begin, part, marks))
        part.module.register_forward_hook(partial(self._end, part), always_call=True)

    def _begin(
        self,
        part: ShardedPart,
        marks: Mapping[str, Mapping[str, Any]],
        module: torch.nn.Module,
        given: object,
    ) -> None:
        for name, parameter in part.parameters_named(marks).items():
            vars(parameter).update(marks[name])
            self.gathered.add(parameter.untyped_storage().data_ptr())

    def _end(
        self, part: ShardedPart, module: torch.nn.Module, given: object, output: object
    ) -> None:
        if part.is_layer:
            self.gathered.clear()

    def zero(self) -> None:
        """Forget the gradients of the last step."""
        for parameter in self._parameters:
            parameter.grad = parameter.main_grad = None

    def finish(self) -> None:
        """Let `main_grad` be the scattered gradients, zero where there was no backward."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.main_grad = parameter.grad

    def gradients(self) -> Iterator[torch.Tensor]:
        """Yield what this rank has of the gradients after `finish`."""
        for parameter in self._parameters:
            yield on_rank(parameter.main_grad)

    def scale(self, factor: float) -> None:
        """Multiply the gradients."""
        for gradient in self.gradients():
            gradient.mul_(factor)


@dataclass(frozen=True)
class ShardedPart:
    """A layer without its experts, or the experts of one: their weights have other replicas.

    An encoder of the user's without layers of Megatron is one layer.
    """

    module: torch.nn.Module
    group: dist.ProcessGroup
    is_layer: bool

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Its parameters that train, by name, without single numbers, which cannot be cut.

        Others stay whole on every rank: a step writes some of them, as biases of experts.
        """
        trained = {n: each for n, each in self.module.named_parameters() if each.requires_grad}
        return {n: p for n, p in trained.items() if p.dim() and is_expert(p) != self.is_layer}

    def parameters_named(self, names: Collection[str]) -> dict[str, torch.nn.Parameter]:
        """Return what `fully_shard` has put in the place of parameters."""
        return {name: each for name, each in self.module.named_parameters() if name in names}


def sharded_parts(module: torch.nn.Module, groups: ProcessGroupCollection) -> list[ShardedPart]:
    """Return what of a module is sharded, inner parts first; a single replica keeps its weights."""
    parts = []
    for layer in trained_layers(module) or _own_encoders(module):
        experts = getattr(getattr(layer, "mlp", None), "experts", None)
        if experts is not None and groups.expt_dp.size() > 1:
            parts.append(ShardedPart(experts, groups.expt_dp, is_layer=False))
        if groups.dp_cp.size() > 1:
            parts.append(ShardedPart(layer, groups.dp_cp, is_layer=True))
    return parts


def _own_encoders(module: torch.nn.Module) -> list[torch.nn.Module]:
    parts: list[Any] = [part for part in module.modules() if getattr(part, "runs_whole", False)]
    return [part.module for part in parts if any(p.requires_grad for p in part.module.parameters())]


def trained_layers(module: torch.nn.Module) -> list[TransformerLayer]:
    """Return the transformer layers of a module of which something is trained."""
    layers = [part for part in module.modules() if isinstance(part, TransformerLayer)]
    return [layer for layer in layers if any(p.requires_grad for p in layer.parameters())]


def _rows(
    parameter: torch.Tensor, group: dist.ProcessGroup, module: weakref.ref[DistributedDataParallel]
) -> RowShard:
    """Return the rows of this rank; `fully_shard` deals them out as `torch.chunk` does."""
    rows = len(parameter)
    width = parameter.numel() // rows
    each = -(-rows // group.size())
    start, stop = (min(each * number, rows) for number in (group.rank(), group.rank() + 1))
    return RowShard(start * width, stop * width, group, module)


def dtype_computed_in(parameter: torch.Tensor) -> torch.dtype:
    """Return the dtype of a parameter while its module computes."""
    dtype: torch.dtype = getattr(parameter, _COMPUTED_IN, parameter.dtype)
    return dtype


def set_trained(parameters: Iterable[torch.nn.Parameter], trained: bool) -> None:
    """Say of parameters whether they are trained."""
    for parameter in parameters:
        parameter.requires_grad_(trained)
