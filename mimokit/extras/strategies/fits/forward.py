"""Forward and backward passes of a node, and the largest micro-batch that fits the memory."""

import copy
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from mimokit.extras.strategies.fits.job import FitError, FitJob, Micro, NodeBatches, on_device


def loss_of(
    model: nn.Module, batch: Any, device: torch.device, rank: int, *, autocast: bool
) -> Tensor:
    """Return the loss of a batch, in bf16 with autocast; `FitError` if it is no scalar."""
    with torch.autocast(device.type, torch.bfloat16) if autocast else nullcontext():
        loss = model(on_device(batch, device))
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point():
        return loss.reshape(())
    what = f"a {type(loss).__name__}"
    if isinstance(loss, Tensor):
        what = f"a tensor of shape {list(loss.shape)} and type {str(loss.dtype)[6:]}"
    raise FitError(
        f"node {rank}: model(batch) returns {what}; it must return the loss, a scalar tensor"
    )


def accumulate(
    model: nn.Module, micros: Sequence[Micro], device: torch.device, rank: int, *, autocast: bool
) -> tuple[float, int, float]:
    """Add the gradient of the mean loss over all samples; return loss, samples and seconds forward.

    The loss of a micro-batch is the mean of its samples: it weighs as much as it has samples.

    Raises:
        FitError: the model returns no scalar, or one that does not depend on its weights.
    """
    samples = sum(count for _, count in micros)
    total: Tensor | None = None
    seconds = 0.0
    for batch, count in micros:
        begun = time.perf_counter()
        loss = loss_of(model, batch, device, rank, autocast=autocast)
        seconds += time.perf_counter() - begun
        if not loss.requires_grad:
            raise FitError(f"node {rank}: the loss of the model does not depend on its parameters")
        share = loss if count == samples else loss * (count / samples)
        share.backward()  # type: ignore[no-untyped-call]
        total = share.detach() if total is None else total + share.detach()
    assert total is not None
    return float(total), samples, seconds


def check_finite(parameters: Mapping[str, nn.Parameter], loss: float, rank: int, step: int) -> None:
    """Raise `FitError` if the loss or a gradient of a step is infinite or not a number."""
    if not math.isfinite(loss):
        raise FitError(f"node {rank}: the loss of step {step} is {loss}")
    gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    sums = [gradient.sum().float() for gradient in gradients.values()]
    if not sums or math.isfinite(float(torch.stack(sums).sum())):
        return
    for name, gradient in gradients.items():
        if not bool(gradient.isfinite().all()):
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

    Memory is assumed to be linear in the samples. Micro-batches of two to four samples that divide
    the batch, one or two of them, are tried in a copy of the model.
    """
    sizes = [size for size in divisors(job.batch_size) if 1 < size <= 4][:2] or [1]
    begun, trials = time.monotonic(), []
    trial = copy.deepcopy(model)
    for size in sizes:
        trials.append((size, kept_bytes(trial, next(data.from_step(0, size))[0][0], device, job)))
        if time.monotonic() - begun > SECONDS / 3:
            break
    states = STATES * sum(weight.nbytes for weight in model.parameters())
    return largest_that_fits(job.batch_size, trials, memory_budget(nodes, device) - states)


def largest_that_fits(batch_size: int, trials: list[tuple[int, int]], budget: float) -> int:
    """Return a divisor of the batch, from (samples, bytes) of trials and a budget in bytes."""
    (few, least), (many, most) = trials[0], trials[-1]
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
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
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
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
