"""AdamW over the gradients that Megatron's DDP reduced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from mimokit.config import RuntimeConfig


def learning_rate_at(runtime: RuntimeConfig, iteration: int) -> float:
    """Return the learning rate of an iteration (0-based): a rise, constant, a fall, all linear."""
    factor = 1.0
    if runtime.learning_rate_warmup:
        factor = min(factor, (iteration + 1) / runtime.learning_rate_warmup)
    if runtime.learning_rate_decay:
        left = max(runtime.num_iterations - iteration, 0)
        factor = min(factor, left / runtime.learning_rate_decay)
    return runtime.learning_rate * factor


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


class MainGradAdamW(torch.optim.AdamW):
    """AdamW that steps on `main_grad`.

    Megatron's DDP keeps the reduced gradient in `parameter.main_grad` and leaves `.grad` None; an
    ordinary optimizer then skips every parameter without a word. A rank that holds nothing but
    frozen modules has no parameters here, which torch's own refuses.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], **options: Any) -> None:
        super().__init__([{"params": list(parameters)}], **options)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter from its `main_grad`.

        Raises:
            RuntimeError: if a trainable parameter has none: its module was not wrapped.
        """
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        for parameter in parameters:
            gradient = getattr(parameter, "main_grad", None)
            if gradient is None:
                raise RuntimeError(
                    f"A parameter of shape {tuple(parameter.shape)} has no main_grad; wrap its "
                    "module in data parallel before creating the optimizer."
                )
            parameter.grad = gradient
        super().step(closure)
        # Left in place, `.grad` would make DDP's hook add the next gradient twice.
        for parameter in parameters:
            parameter.grad = None
