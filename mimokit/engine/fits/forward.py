"""A step's forward and backward passes: micro-batches that add up to the gradient of the batch."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from mimokit.engine.fits.data import Micro, NodeBatches, on_device
from mimokit.engine.fits.job import FitError, FitJob


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


CPU_SHARE = 0.5
"""Of the free memory of a CPU that all nodes together may use."""

GPU_SHARE = 0.8
"""Likewise of a GPU."""

STATES = 6
"""Copies of the weights that a node holds: gradient, two of the optimizer, bucket, outer weights
and their momentum."""

BACKWARD = 2.0
"""How much more than the kept activations the backward pass needs, with their gradients."""

SECONDS = 10.0
"""Time that all trials together may take."""


def find_minibatch_size(
    model: nn.Module, job: FitJob, data: NodeBatches, nodes: int, device: torch.device
) -> int:
    """Return the largest divisor of `batch_size` whose micro-batch fits; 1 if none does.

    Memory is taken to grow evenly with samples. Micro-batches of two and four samples, or whatever
    of that divides the batch, are tried in a copy of the model, which says how.
    """
    sizes = [size for size in divisors(job.batch_size) if size <= 4] or [1]
    sizes = [size for size in sizes if size > 1][:2] or sizes[:1]
    begun, found = time.monotonic(), []
    trial = copy.deepcopy(model)
    for size in sizes:
        found.append((size, kept_bytes(trial, next(data.from_step(0, size))[0][0], device, job)))
        used = time.monotonic() - begun
        if used > SECONDS / 3:
            break
    budget = memory_budget(nodes, device) - STATES * _bytes_of(model)
    return largest_that_fits(job.batch_size, found, budget)


def largest_that_fits(batch_size: int, found: list[tuple[int, int]], budget: float) -> int:
    """Return a divisor of the batch.

    Args:
        found: (samples, bytes) of trials, ascending.
        budget: bytes that there are.
    """
    (few, least), (many, most) = found[0], found[-1]
    slope = (most - least) / (many - few) if many > few else least / few
    fixed = max(0.0, least - slope * few)
    fitting = (
        size
        for size in reversed(divisors(batch_size))
        if BACKWARD * (fixed + slope * size) <= budget
    )
    return next(fitting, 1)


def kept_bytes(model: nn.Module, batch: Any, device: torch.device, job: FitJob) -> int:
    """Return the bytes that a forward pass keeps for the backward pass, weights aside."""
    weights = {one.untyped_storage().data_ptr() for one in model.parameters()}
    kept: dict[int, int] = {}

    def keep(one: Tensor) -> Tensor:
        storage = one.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return one

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one)
    with torch.random.fork_rng(), hooks:
        with torch.autocast(device.type, torch.bfloat16, enabled=job.autocast):
            loss = model(on_device(batch, device))
        del loss
    return sum(kept.values())


def memory_budget(nodes: int, device: torch.device) -> float:
    """Return the bytes that a node may use."""
    if device.type == "cuda":
        sharing = -(-nodes // torch.cuda.device_count())
        return GPU_SHARE * torch.cuda.mem_get_info(device)[0] / sharing
    return CPU_SHARE * float(psutil.virtual_memory().available) / nodes


def divisors(number: int) -> list[int]:
    """Return the divisors, ascending."""
    return [one for one in range(1, number + 1) if number % one == 0]


def _bytes_of(model: nn.Module) -> int:
    return sum(one.numel() * one.element_size() for one in model.parameters())
