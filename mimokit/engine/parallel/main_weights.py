"""The fp32 numbers that an optimizer steps: the parameters of a model, parts or copies of them.

Parameters of fewer bits have a copy in fp32, their main weight: an update that is smaller than half
a step of bf16 would be lost otherwise. It starts as the parameter is, so that a model starts from
weights of its own precision. After a step the parameter is the main weight, rounded.

Where the states of the optimizer are sharded (ZeRO-1, Rajbhandari et al. 2020, arXiv:1910.02054),
each data parallel rank has reduced gradients, main weights and states of its entries only. All
ranks have whole parameters: they gather them after each step.
"""

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from mimokit.engine.megatron import DistributedDataParallel

_MAIN, _SHARD = "main_weight", "state_shard"
"""Attributes of a parameter that is not stepped itself."""


@dataclass(frozen=True)
class StateShard:
    """The entries of a flattened parameter that this rank steps, maybe none.

    Attributes:
        group: ranks with the other entries; a parameter may have several such groups.
    """

    start: int
    stop: int
    group: dist.ProcessGroup
    module: weakref.ref[DistributedDataParallel]
    gathers_weights: ClassVar[bool] = True
    """After a step; otherwise whenever they are computed with."""

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the entries of this rank, [entries], of a tensor like the parameter."""
        return tensor.detach().view(-1)[self.start : self.stop]

    def gathered(self, piece: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """Return the whole of what each rank has its entries of. Collective over the group."""
        whole = piece.new_zeros(shape)
        self.of(whole).copy_(piece)
        dist.all_reduce(whole, group=self.group)
        return whole


def shard_states(module: DistributedDataParallel) -> None:
    """Mark the trained parameters of a module whose gradients are scattered with their entries."""
    reference = weakref.ref(module)
    for buffer, group in _buffers(module):
        for bucket in buffer.buckets:
            own = _part_of_bucket(bucket, group)
            ends = bucket.offset + own.start, bucket.offset + own.stop
            for parameter in bucket.params_list:
                first, last, _ = buffer.param_index_map[parameter]
                start, stop = (min(max(place, first), last) - first for place in ends)
                set_shard(parameter, StateShard(start, stop, group, reference))


def reduced_buckets(module: DistributedDataParallel) -> Iterator[torch.Tensor]:
    """Yield what this rank has of each bucket of reduced gradients, [numbers] with padding."""
    for buffer, group in _buffers(module):
        for bucket in buffer.buckets:
            if module.ddp_config.use_distributed_optimizer:
                own = _part_of_bucket(bucket, group)
                yield bucket.grad_data[own.start : own.stop]
            else:
                yield bucket.grad_data


def _buffers(module: DistributedDataParallel) -> Iterator[tuple[Any, dist.ProcessGroup]]:
    for buffer in module.buffers:
        yield buffer, module.intra_dp_cp_group
    for buffer in module.expert_parallel_buffers:
        yield buffer, module.intra_expt_dp_group


def _part_of_bucket(bucket: Any, group: dist.ProcessGroup) -> range:
    size = bucket.grad_data.numel() // group.size()
    return range(group.rank() * size, (group.rank() + 1) * size)


def on_rank(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a weight or of a gradient, which may be a `DTensor`."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local().detach()


def set_shard(parameter: torch.Tensor, shard: StateShard) -> None:
    """Mark a parameter with the entries that this rank steps."""
    setattr(parameter, _SHARD, shard)


def state_shard(parameter: torch.Tensor) -> StateShard | None:
    """Return the entries of a parameter that this rank steps; None: all of them."""
    return getattr(parameter, _SHARD, None)


def is_held_in_part(parameter: torch.Tensor) -> bool:
    """Return whether this rank has some entries of a weight and of its gradient, not all."""
    shard = state_shard(parameter)
    return shard is not None and not shard.gathers_weights


def reduced_gradient(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """Return the gradient of what this rank steps of a parameter; None: its module has none."""
    gradient: torch.Tensor | None = getattr(parameter, "main_grad", None)
    shard = state_shard(parameter)
    return gradient if gradient is None or shard is None else shard.of(gradient)


def main_weight(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """Return what an optimizer steps instead of a parameter: itself if it is whole and fp32.

    There is one main weight, whoever asks. A parameter that is not trained has none.
    """
    shard, is_fp32 = state_shard(parameter), parameter.dtype == torch.float32
    if (is_fp32 and shard is None) or not parameter.requires_grad:
        return parameter
    main: torch.nn.Parameter | None = getattr(parameter, _MAIN, None)
    if main is None:
        stepped = parameter.detach() if shard is None else shard.of(parameter)
        main = torch.nn.Parameter(stepped.float())  # in fp32 it shares the parameter's memory
        setattr(parameter, _MAIN, main)
    return main


def main_value(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Return the whole weight of a parameter in the most bits that there are of it.

    Collective over the ranks with its shards, if the states of its optimizer are sharded.
    """
    shard, main = state_shard(parameter), main_weight(parameter).detach()
    return main if shard is None else shard.gathered(main, parameter.shape)


def is_main_weight(parameter: torch.nn.Parameter, weight: torch.Tensor) -> bool:
    """Return whether layers compute with the whole main weight of a parameter, rounded."""
    shard = state_shard(parameter)
    if shard is not None and is_held_in_part(parameter):
        return torch.equal(shard.of(parameter), main_weight(parameter))
    return torch.equal(weight.to(parameter.dtype), parameter)


def whole_gradient(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """Return the whole reduced gradient of a parameter. Collective as `main_value` is."""
    gradient, shard = reduced_gradient(parameter), state_shard(parameter)
    if gradient is None or shard is None:
        return gradient
    return shard.gathered(gradient, parameter.shape)


@torch.no_grad()
def round_main_weights(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Make parameters their main weights, rounded. Collective over the ranks with their shards."""
    modules: dict[weakref.ref[DistributedDataParallel], None] = {}
    for parameter in parameters:
        shard, main = state_shard(parameter), main_weight(parameter)
        if parameter.dtype != torch.float32:
            (parameter if shard is None else shard.of(parameter)).copy_(main)
        if shard is not None and shard.gathers_weights:
            modules[shard.module] = None
    for reference in modules:
        module = reference()
        assert module is not None
        module.start_param_sync(force_sync=True)
