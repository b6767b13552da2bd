"""Megatron's linear layers with products in 8 bits, without Transformer Engine."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import mappings
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.transformer_layer import TransformerLayer

from mimokit.engine.megatron.fp8 import E4M3, E5M2, Scaled, product, rounded, scales
from mimokit.engine.megatron.transformer_engine import WholeLinear
from mimokit.engine.megatron.weight_products import Later, later_of


@dataclass(frozen=True)
class _Products:
    """How the products of a linear layer are computed.

    Attributes:
        sharing: ranks that share its input, weight or output; they have the same scales.
        sliced: ranks whose inputs are slices of one sequence; None: it is whole.
        summed: ranks whose gradients of the input are added; None: they are whole.
        later: takes the gradient of the weight; None: it is computed in the backward pass.
    """

    sharing: dist.ProcessGroup
    sliced: dist.ProcessGroup | None = None
    summed: dist.ProcessGroup | None = None
    later: Later | None = None

    def whole(self, given: Scaled, of: torch.Size) -> Scaled:
        """Return what all slices are together. Collective over their ranks."""
        if self.sliced is None:
            return given
        numbers = given.numbers.view(torch.uint8).view(of)
        gathered = mappings._gather_along_first_dim(numbers, self.sliced)
        return Scaled(gathered.flatten(0, -2).view(given.numbers.dtype), given.unit)


class _Linear(torch.autograd.Function):
    """A matrix product whose operands, and those of whose gradients, have 8 bits."""

    @staticmethod
    def forward(
        ctx: Any, given: torch.Tensor, weight: torch.Tensor, how: _Products
    ) -> torch.Tensor:
        """Return [..., outputs] of an input [..., inputs] and a weight [outputs, inputs]."""
        scale, ctx.weight_scale = scales((given, weight), (E4M3, E4M3), how.sharing)
        kept = rounded(given, scale, E4M3)
        right = rounded(weight, ctx.weight_scale, E4M3)
        left = how.whole(kept, given.shape)
        output = product(left, right, given.dtype, fast_sums=True)
        needs_input = ctx.needs_input_grad[1] or how.later is not None
        ctx.save_for_backward(weight, *((kept.numbers, kept.unit) if needs_input else ()))
        ctx.how, ctx.shape = how, given.shape
        return output.view(*_whole_shape(given.shape, how.sliced), len(weight))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        (gradient,), (weight, *kept), how = gradients, ctx.saved_tensors, ctx.how
        (scale,) = scales((gradient,), (E5M2,), how.sharing)
        left = rounded(gradient, scale, E5M2)
        of_input = None
        if ctx.needs_input_grad[0]:
            right = rounded(weight, ctx.weight_scale, E4M3)
            of_input = product(left, right.transposed, gradient.dtype)
            of_input = of_input.view(*gradient.shape[:-1], weight.shape[1])
            if how.summed is not None:
                dist.all_reduce(of_input, group=how.summed)
            if how.sliced is not None:
                of_input = mappings._reduce_scatter_along_first_dim(of_input, how.sliced)
        if not kept:
            return of_input, None, None
        given = Scaled(*kept)
        of_weight = partial(_gradient_of_weight, how, left, given, ctx.shape, gradient.dtype)
        if how.later is not None:
            how.later(of_weight)
            return of_input, None, None
        return of_input, of_weight(), None


def _whole_shape(shape: torch.Size, sliced: dist.ProcessGroup | None) -> tuple[int, ...]:
    first, *others = shape[:-1]
    return (first * (1 if sliced is None else sliced.size()), *others)


def _gradient_of_weight(
    how: _Products, gradient: Scaled, given: Scaled, shape: torch.Size, dtype: torch.dtype
) -> torch.Tensor:
    """Return the gradient of a weight. Collective over ranks whose inputs are slices."""
    return product(gradient.transposed, how.whole(given, shape).transposed, dtype)


def _multiply(
    sharing: dist.ProcessGroup,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    allreduce_dgrad: bool = False,
    sequence_parallel: bool = False,
    tp_group: dist.ProcessGroup | None = None,
    **unused: object,
) -> torch.Tensor:
    how = _Products(
        sharing,
        sliced=tp_group if sequence_parallel else None,
        summed=tp_group if allreduce_dgrad else None,
        later=later_of(input, weight),
    )
    if how.later is not None:
        weight = weight.detach()
    output: torch.Tensor = _Linear.apply(input, weight, how)  # type: ignore[no-untyped-call]
    return output if bias is None else output + bias


def multiply_in_fp8(module: torch.nn.Module, groups: ProcessGroupCollection) -> None:
    """Let the linear layers inside the transformer layers of a module multiply in 8 bits.

    Embeddings, logits, routers, norms, attention itself and projectors keep their precision. Ranks
    that share a sequence or a matrix have the same scales; those of an expert are of its matrices
    and of the tokens that reach one rank of it.
    """
    layers = (part for part in module.modules() if isinstance(part, TransformerLayer))
    for part in (part for layer in layers for part in layer.modules()):
        if isinstance(part, (ColumnParallelLinear, RowParallelLinear, WholeLinear)):
            linear: Any = part
            of_expert = getattr(linear, "is_expert", False)
            sharing = linear.tp_group if of_expert else groups.tp_cp
            linear._forward_impl = partial(_multiply, sharing)
