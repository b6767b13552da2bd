"""Matrices of 8-bit numbers with one scale each, and their products.

As in the recipe Float8CurrentScaling of Transformer Engine (user guide, "FP8 Current Scaling"):
weights and activations are E4M3, gradients of outputs E5M2, and the scale of a matrix is the
largest number of its format divided by the largest magnitude in the matrix.

On GPUs of compute capability 8.9 or more products are `torch._scaled_mm`. Elsewhere the same 8-bit
numbers are multiplied in fp32: this shows what fp8 computes, not how fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
import torch.distributed as dist
import torch.nn.functional as F

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
_FIRST_WITH_FP8 = (8, 9)
"""Compute capability of Ada; Hopper has 9.0."""
_MULTIPLE = 16
"""What `torch._scaled_mm` asks of the columns of its operands."""


@dataclass(frozen=True)
class Scaled:
    """A matrix of 8-bit numbers, [rows, columns].

    Attributes:
        unit: one over the scale, a single number in fp32.
    """

    numbers: torch.Tensor
    unit: torch.Tensor

    @property
    def transposed(self) -> Scaled:
        """The matrix with rows and columns exchanged."""
        return Scaled(self.numbers.t(), self.unit)


def scales(
    tensors: Sequence[torch.Tensor], formats: Sequence[torch.dtype], group: dist.ProcessGroup
) -> list[torch.Tensor]:
    """Return the scale of each tensor, in fp32. Collective over the ranks that share the tensors.

    That of zeros is 1. What is infinite or not a number makes all numbers of its tensor not a
    number, where Transformer Engine would round it to the largest number of the format.
    """
    largest = torch.stack([_largest(tensor) for tensor in tensors])
    if group.size() > 1:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    pairs = zip(largest.unbind(), formats, strict=True)
    return [_scale(magnitude, torch.finfo(format).max) for magnitude, format in pairs]


def _scale(magnitude: torch.Tensor, most: float) -> torch.Tensor:
    # A Python number on the left would be multiplied by a reciprocal, which rounds twice.
    scale = (torch.full_like(magnitude, most) / magnitude).clamp(max=torch.finfo(torch.float32).max)
    return torch.where(magnitude == 0, 1.0, scale)


def _largest(tensor: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude in fp32; that of no numbers is 0."""
    if not tensor.numel():
        return torch.zeros((), device=tensor.device)
    return torch.stack(tensor.detach().aminmax()).abs().amax().float()


def rounded(tensor: torch.Tensor, scale: torch.Tensor, format: torch.dtype) -> Scaled:
    """Return a tensor in 8 bits, its leading dimensions as rows."""
    # A scale of one dimension makes torch multiply in fp32, of none in the type of the tensor.
    numbers = (tensor.detach() * scale[None]).to(format)
    return Scaled(numbers.flatten(0, -2), scale.reciprocal())


def product(
    left: Scaled, right: Scaled, dtype: torch.dtype, fast_sums: bool = False
) -> torch.Tensor:
    """Return the product of [rows, columns] and [others, columns], [rows, others].

    Args:
        dtype: of the result; sums are in fp32 before.
        fast_sums: tensor cores may add up in fewer bits than fp32, as Transformer Engine lets them
            in the forward pass alone.
    """
    has_numbers = bool(left.numbers.numel() and right.numbers.numel())
    if has_numbers and _has_fp8(left.numbers.device):
        return _on_tensor_cores(left, right, dtype, fast_sums)
    return _emulated(left, right, dtype)


def _emulated(left: Scaled, right: Scaled, dtype: torch.dtype) -> torch.Tensor:
    whole = left.numbers.float() @ right.numbers.float().t()
    return (whole * (left.unit * right.unit)).to(dtype)


def _on_tensor_cores(
    left: Scaled, right: Scaled, dtype: torch.dtype, fast_sums: bool
) -> torch.Tensor:
    others = len(right.numbers)
    whole: torch.Tensor = torch._scaled_mm(
        _in_multiples(left.numbers),
        _padded(_in_multiples(right.numbers), (0, 0, 0, -others % _MULTIPLE)).t(),
        scale_a=left.unit,
        scale_b=right.unit,
        out_dtype=dtype,
        use_fast_accum=fast_sums,
    )
    return whole[:, :others].contiguous()


def _in_multiples(matrix: torch.Tensor) -> torch.Tensor:
    """Return a matrix row by row in memory, with columns of zeros up to a multiple of 16."""
    return _padded(matrix, (0, -matrix.shape[1] % _MULTIPLE)).contiguous()


def _padded(matrix: torch.Tensor, sides: tuple[int, ...]) -> torch.Tensor:
    """Return an 8-bit matrix with zeros around; torch pads bytes, not such numbers."""
    if not any(sides):
        return matrix
    return F.pad(matrix.view(torch.uint8), sides).view(matrix.dtype)


@cache
def _has_fp8(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) >= _FIRST_WITH_FP8
