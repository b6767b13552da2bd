"""Sequence parallelism: what tensor parallelism leaves whole is cut along the sequence.

Outside the matrices of its layers a tensor-parallel rank then computes a slice of the positions. A
parameter that it uses there is whole on every rank, with the gradient of this slice alone. Such a
parameter is marked, and its gradients are summed over the ranks before the optimizer steps. So is
the norm of heads, with or without slices: a rank uses it for heads of its own.
"""

import copy
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from mimokit.engine.megatron import (
    TransformerConfig,
    WrappedTorchNorm,
    fused_kernels,
    tensor_parallel,
)
from mimokit.engine.megatron.cpu import CPU_ONLY
from mimokit.engine.megatron.sums import LayerNorm
from mimokit.engine.parallel.main_weights import on_rank
from mimokit.engine.parallel.marks import is_of_slice, mark_of_slice


class SliceNorm:
    """Builds torch's norm of a configuration, marked where it sees a slice of the positions.

    Megatron's `WrappedTorchNorm` refuses sequence parallelism, as torch's norms set no mark.
    """

    def __new__(
        cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **options: Any
    ) -> Any:
        """Return the norm, with parameters of the configured type."""
        norm = _whole_norm(config, config.normalization, hidden_size, eps, **options)
        if config.sequence_parallel:
            mark_of_slice(norm.parameters())
        return norm


class HeadNorm:
    """Builds an RMSNorm over each head of query or key, marked where ranks have other heads."""

    def __new__(
        cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **options: Any
    ) -> Any:
        """Return the norm of vectors of the width of a head."""
        norm = _whole_norm(config, "RMSNorm", hidden_size, eps, **options)
        if config.tensor_model_parallel_size > 1:
            mark_of_slice(norm.parameters())
        return norm


def _whole_norm(
    config: TransformerConfig, kind: str, width: int, epsilon: float, **options: Any
) -> Any:
    whole = copy.copy(config)
    whole.sequence_parallel, whole.normalization = False, kind
    norm = (fused_kernels().norm or WrappedTorchNorm)(whole, width, eps=epsilon)
    if CPU_ONLY and kind == "LayerNorm":
        norm = LayerNorm(width, eps=epsilon)
    return norm.to(config.params_dtype)


def slice_of_rank(
    hidden: torch.Tensor, config: TransformerConfig, tensor_group: dist.ProcessGroup
) -> torch.Tensor:
    """Return the positions that this tensor-parallel rank computes outside of matrices.

    Args:
        hidden: [positions, …], the same on every rank.

    Raises:
        ValueError: the ranks do not divide the positions.
    """
    if not config.sequence_parallel:
        return hidden
    if len(hidden) % tensor_group.size():
        raise ValueError(
            f"A sequence has {len(hidden)} positions, which {tensor_group.size()} tensor-parallel "
            "ranks cannot share evenly, as sequence_parallel asks for; pad it to a multiple."
        )
    return tensor_parallel.scatter_to_sequence_parallel_region(hidden, group=tensor_group)  # type: ignore[no-any-return]


def all_slices(
    hidden: torch.Tensor, config: TransformerConfig, tensor_group: dist.ProcessGroup
) -> torch.Tensor:
    """Return the positions of all tensor-parallel ranks, for work that every rank does alike.

    Every rank then has the whole gradient already and keeps its slice; a sum over the ranks would
    be as many times too large.
    """
    if not config.sequence_parallel:
        return hidden
    return tensor_parallel.gather_from_sequence_parallel_region(  # type: ignore[no-any-return]
        hidden, tensor_parallel_output_grad=False, group=tensor_group
    )


def slices(config: TransformerConfig) -> int:
    """Return into how many slices positions are cut between the layers."""
    return int(config.tensor_model_parallel_size) if config.sequence_parallel else 1


def sum_gradients_of_slices(
    parameters: Iterable[torch.nn.Parameter], tensor_group: dist.ProcessGroup
) -> None:
    """Add the gradients of all slices. Collective over the tensor-parallel ranks of a module."""
    gradients: list[torch.Tensor] = [
        on_rank(parameter.main_grad)  # type: ignore[attr-defined]
        for parameter in parameters
        if parameter.requires_grad and is_of_slice(parameter)
    ]
    if tensor_group.size() == 1 or not gradients:
        return
    flat = _flatten_dense_tensors(gradients)  # type: ignore[no-untyped-call]
    dist.all_reduce(flat, group=tensor_group)
    totals = _unflatten_dense_tensors(flat, gradients)  # type: ignore[no-untyped-call]
    for gradient, total in zip(gradients, totals, strict=True):
        gradient.copy_(total)
