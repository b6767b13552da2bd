"""A step's forward and backward passes: micro-batches that add up to the gradient of the batch."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from mimokit.engine.fits.data import Micro, on_device
from mimokit.engine.fits.job import FitError


def scalar_loss(found: Any, rank: int) -> Tensor:
    """Return what a model has returned, if it is a scalar.

    Raises:
        FitError: it is none.
    """
    if isinstance(found, Tensor) and found.numel() == 1 and found.is_floating_point():
        return found.reshape(())
    what = f"a {type(found).__name__}"
    if isinstance(found, Tensor):
        what = f"a tensor of shape {list(found.shape)} and type {str(found.dtype)[6:]}"
    raise FitError(
        f"node {rank}: model(batch) returns {what}; it must return the loss, a scalar tensor"
    )


def accumulate(
    model: nn.Module, micros: Sequence[Micro], device: torch.device, rank: int, *, autocast: bool
) -> tuple[float, int, float]:
    """Add the gradient of the mean loss over all samples, and return (loss, samples, seconds of the
    forward passes).

    The loss of a micro-batch is the mean of its samples: it weighs as much as it has samples.

    Raises:
        FitError: the model returns no scalar, or one that does not depend on its weights.
    """
    samples = sum(count for _, count in micros)
    total: Tensor | None = None
    seconds = 0.0
    for batch, count in micros:
        begun = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16) if autocast else nullcontext():
            loss = scalar_loss(model(on_device(batch, device)), rank)
        seconds += time.perf_counter() - begun
        if not loss.requires_grad:
            raise FitError(f"node {rank}: the loss of the model does not depend on its parameters")
        share = loss if count == samples else loss * (count / samples)
        share.backward()  # type: ignore[no-untyped-call]
        total = share.detach() if total is None else total + share.detach()
    assert total is not None
    return float(total), samples, seconds


def check_finite(parameters: Mapping[str, nn.Parameter], loss: float, rank: int, step: int) -> None:
    """Check that loss and gradients of a step are numbers.

    Raises:
        FitError: loss or gradient is infinite or not a number; names node and step.
    """
    if not math.isfinite(loss):
        raise FitError(f"node {rank}: the loss of step {step} is {loss}")
    sums = [one.grad.sum() for one in parameters.values() if one.grad is not None]
    if sums and not math.isfinite(float(torch.stack([one.float() for one in sums]).sum())):
        name = next(
            (
                name
                for name, one in parameters.items()
                if one.grad is not None and not bool(one.grad.isfinite().all())
            ),
            None,
        )
        if name is not None:
            raise FitError(f"node {rank}: the gradient of {name!r} in step {step} is not finite")
