"""Gradients of bf16 and fp16 weights, summed in fp32 on a CPU as kernels of CUDA sum them.

torch's CPU kernels add the rows of a batch up in the type of the weight: of 3,000 rows the gradient
of a bias of `LayerNorm`, or of a row of an embedding, is then wrong by several per cent.
"""

from typing import Any

import torch
import torch.nn.functional as F


class _Lookup(torch.autograd.Function):
    """`torch.nn.functional.embedding` whose backward pass sums in fp32."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Return the rows [..., width] of a table [rows, width]."""
        ctx.save_for_backward(rows)
        ctx.shape, ctx.dtype = table.shape, table.dtype
        return F.embedding(rows, table)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor]:
        (rows,), (gradient,) = ctx.saved_tensors, gradients
        total = torch.zeros(ctx.shape, dtype=torch.float32)
        total.index_add_(0, rows.flatten(), gradient.reshape(-1, ctx.shape[1]).float())
        return None, total.to(ctx.dtype)


def embedding(rows: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return the rows [..., width] of a table [rows, width], as torch's function does."""
    if table.device.type != "cpu" or table.dtype == torch.float32:
        return F.embedding(rows, table)
    return _Lookup.apply(rows, table)  # type: ignore[no-any-return, no-untyped-call]


class LayerNorm(torch.nn.LayerNorm):
    """torch's, which computes in fp32 where it has weights of fewer bits."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize the last dimension."""
        if self.weight.dtype == torch.float32:
            return super().forward(input)
        weight, bias = self.weight.float(), self.bias.float()
        normed = F.layer_norm(input.float(), self.normalized_shape, weight, bias, self.eps)
        return normed.to(input.dtype)


class Functional:
    """`torch.nn.functional` with this `embedding`."""

    embedding = staticmethod(embedding)

    def __getattr__(self, name: str) -> Any:
        """Return a function of torch's."""
        return getattr(F, name)
