"""Cross entropy over a vocabulary that is sharded over tensor-parallel ranks, in fp32.

Megatron's unfused loss reads its group from the global parallel state. The fused loss takes a group
but rounds the gradient of the logits to bfloat16 (`fused_cross_entropy.calculate_gradients`), which
breaks layout invariance. This one takes a group, stays in fp32, and uses Megatron's arithmetic
(`VocabParallelCrossEntropy`).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

from mimokit.config.user_code import OwnLoss
from mimokit.engine.megatron import VocabParallelCrossEntropy, VocabUtility


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, group: dist.ProcessGroup
    ) -> torch.Tensor:
        copied = logits.to(torch.float32, copy=True)  # Megatron computes in place
        work, maximum = VocabParallelCrossEntropy.calculate_logits_max(copied)
        dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=group)
        start, stop = VocabUtility.vocab_range_from_per_partition_vocab_size(
            logits.shape[-1], group.rank(), group.size()
        )
        mask, masked_labels, predicted, total, exponentials = (
            VocabParallelCrossEntropy.calculate_predicted_logits(work, labels, maximum, start, stop)
        )
        both = torch.stack((predicted, total))
        dist.all_reduce(both, group=group)
        softmax, loss = VocabParallelCrossEntropy.calculate_cross_entropy_loss(
            exponentials, both[0], both[1]
        )
        ctx.save_for_backward(softmax, mask, masked_labels)
        return loss  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        softmax, mask, masked_labels = ctx.saved_tensors
        flat, rows, update, result = (
            VocabParallelCrossEntropy.prepare_gradient_calculation_operands(softmax, mask)
        )
        result = VocabParallelCrossEntropy.calculate_gradients(
            flat, rows, masked_labels, update, result, gradient
        )
        return result, None, None


def vocab_parallel_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, tensor_group: dist.ProcessGroup
) -> torch.Tensor:
    """Return the loss of every token.

    Args:
        logits: [batch, sequence, vocabulary / TP], this rank's part of the vocabulary.
        labels: [batch, sequence], token ids of the whole vocabulary.

    Returns:
        [batch, sequence], the same on every rank of the group.
    """
    return _CrossEntropy.apply(logits, labels, tensor_group)  # type: ignore[no-any-return,no-untyped-call]


def one_over(tokens: float) -> float:
    """Return what a sum over tokens is multiplied by for their mean; 1 where there are none."""
    return 1.0 / tokens if tokens > 0 else 1.0


def masked_loss_sum(losses: torch.Tensor, loss_mask: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return the sum of the losses of unmasked tokens and their number (0 gives 0.0, not NaN).

    Raises:
        ValueError: if the shapes differ.
    """
    if losses.shape != loss_mask.shape:
        raise ValueError(
            f"The loss mask has shape {tuple(loss_mask.shape)} but the losses have "
            f"{tuple(losses.shape)}; both must be [batch, sequence]."
        )
    return (losses * loss_mask).sum(), loss_mask.sum().item()


def loss_sum(
    loss_func: OwnLoss | None, losses: torch.Tensor, loss_mask: torch.Tensor
) -> tuple[torch.Tensor, float]:
    """Return the sum of the losses of a micro-batch and the number of tokens that it is of.

    Args:
        loss_func: of the user; None for the sum over unmasked tokens.

    Raises:
        ValueError: the user's function returns something else.
    """
    if loss_func is None:
        return masked_loss_sum(losses, loss_mask)
    return sum_and_tokens(loss_func(loss_mask, losses))


def squared_errors(made: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """Return the sum over rows of the mean squared error of their pixels, in fp32."""
    return (made.float() - pixels.float()).square().mean(1).sum()


def sum_and_tokens(returned: Any) -> tuple[torch.Tensor, float]:
    """Return the sum of a micro-batch's losses and their number, as a loss function returned them.

    A mean is rejected: gradients of means cannot be added up to the gradient of the mean over all
    tokens where micro-batches or replicas differ in their number of unmasked tokens. Where tokens
    have weights, their number is the sum of the weights.

    Raises:
        ValueError: they are missing, the sum is not a scalar tensor, or the number is negative or
            not finite.
    """
    loss, *others = returned if isinstance(returned, tuple | list) else (returned,)
    if not others or isinstance(others[0], dict):
        raise ValueError(
            "The loss function returned no number of tokens; it must return the sum of the losses "
            "of all unmasked tokens and the number of those tokens."
        )
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ValueError(
            f"The loss function returned {what} as its loss; it must be a tensor of one number, "
            "the sum of the losses of all unmasked tokens."
        )
    tokens = float(others[0])
    if not (math.isfinite(tokens) and tokens >= 0):
        raise ValueError(
            f"The loss function returned {tokens:g} as the number of its tokens; it must be the "
            "number of unmasked tokens, or the sum of their weights, 0 or more."
        )
    return loss.reshape(()), tokens
