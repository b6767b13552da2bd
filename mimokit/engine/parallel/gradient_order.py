"""The order of a step: gradients are summed, reduced, taken by an optimizer, and set to zero.

A loop of the user's that leaves out one of these, or changes their order, would train something
else without an error. The schedules of such loops begin the order; mimokit's own loop does not.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


class GradientOrderError(RuntimeError):
    """A training loop leaves out a part of a step, or does it too early."""


class Gradients(Enum):
    """What is in the gradient buffers of a module."""

    ZERO = 0
    SUMMED = 1
    REDUCED = 2


class GradientOrder:
    """What is in the gradient buffers of a module in a loop of the user's.

    The trained parameters of the module refer to it.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._state = Gradients.ZERO
        for parameter in parameters:
            if parameter.requires_grad:
                setattr(parameter, _ORDER, self)

    def begin_micro_batches(self) -> None:
        """Begin to add the gradients of micro-batches.

        Raises:
            GradientOrderError: those of the last step are still there.
        """
        if self._state is Gradients.REDUCED:
            raise GradientOrderError(
                "The gradients of the last step are still in the buffers, and new ones would be "
                "added to them; call zero_grad_buffer_for_multimodule(modules) after "
                "optimizer.step(): optimizer.zero_grad() does not reach these buffers."
            )
        self._state = Gradients.SUMMED

    def reduced(self) -> None:
        """Note that gradients are summed over replicas and scaled."""
        if self._state is Gradients.SUMMED:
            self._state = Gradients.REDUCED

    def zeroed(self) -> None:
        """Note that the buffers are zero."""
        self._state = Gradients.ZERO

    @property
    def begun(self) -> bool:
        """Whether a schedule has added gradients since the buffers were zero."""
        return self._state is not Gradients.ZERO

    def check_reduced(self) -> None:
        """Reject a step of an optimizer by gradients that are not reduced.

        Raises:
            GradientOrderError: they are those of this rank's samples alone.
        """
        if self._state is Gradients.SUMMED:
            raise GradientOrderError(
                "optimizer.step() was called before finalize_model_grads: the gradients are still "
                "sums over the samples of this rank alone; call finalize_model_grads(modules) "
                "between the schedule and optimizer.step()."
            )


_ORDER = "gradient_order"
"""Attribute of the parameters of a wrapped module."""


def same_order(main: torch.Tensor, parameter: torch.Tensor) -> None:
    """Let a main weight be checked as the parameter that it is of."""
    order = getattr(parameter, _ORDER, None)
    if order is not None:
        setattr(main, _ORDER, order)


def _check(optimizer: torch.optim.Optimizer, given: Any, named: Any) -> None:
    wrapped = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if hasattr(parameter, _ORDER) and getattr(parameter, _ORDER).begun
    ]
    if not wrapped:
        return
    reads_buffers = getattr(optimizer, "reads_main_grad", False)
    if not reads_buffers and all(parameter.grad is None for parameter in wrapped):
        raise GradientOrderError(
            f"{type(optimizer).__name__} sees no gradients and would change nothing: data parallel "
            "keeps them in main_grad, and .grad is None; use mimokit.engine.MainGradAdamW."
        )
    for order in {getattr(parameter, _ORDER) for parameter in wrapped}:
        order.check_reduced()


register_optimizer_step_pre_hook(_check)
