"""Muon for the matrices of layers, AdamW for everything else, where ranks may share a matrix."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial of a Newton-Schulz step, as in `torch.optim.Muon`."""

NEWTON_SCHULZ_STEPS = 5


class MatrixPieces(Protocol):
    """What a rank steps of a matrix that other ranks step the rest of."""

    def gathered(self, own: Tensor) -> Tensor:
        """Return the whole matrix. Collective over the ranks with its pieces."""

    def own(self, whole: Tensor) -> Tensor:
        """Return what this rank steps of it."""


class LayerMuon(torch.optim.AdamW):
    """`torch.optim.Muon` of matrices, and AdamW of everything else in a group.

    A group has under "matrices" parameter -> its pieces, or None if it is whole. The rest is as in
    torch, but matrices are made orthogonal in the type of their gradients: torch does it in bf16,
    where a rounding error of a gradient changes a step by more than a hundredth.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        eps: float = 1e-7,
        momentum: float = 0.95,
        nesterov: bool = True,
    ) -> None:
        self._momentum, self._nesterov = momentum, nesterov
        super().__init__(params, lr=lr, weight_decay=weight_decay, eps=eps)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step matrices, then everything else. Collective over ranks that share matrices."""
        groups = self.param_groups
        for group in groups:
            for parameter, pieces in _matrices(group).items():
                if parameter.grad is not None:
                    self._step_matrix(parameter, pieces, group)
        try:
            self.param_groups = [
                {**group, "params": [p for p in group["params"] if p not in _matrices(group)]}
                for group in groups
            ]
            super().step()
        finally:
            self.param_groups = groups

    def _step_matrix(
        self, parameter: nn.Parameter, pieces: MatrixPieces | None, group: Mapping[str, Any]
    ) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - self._momentum)
        update = gradient.lerp(momentum, self._momentum) if self._nesterov else momentum
        whole = update if pieces is None else pieces.gathered(update)
        step = orthogonal(whole, group["eps"])
        rows, columns = whole.shape
        lr: float = group["lr"]
        own = step if pieces is None else pieces.own(step)
        parameter.mul_(1 - lr * group["weight_decay"])
        parameter.sub_(own, alpha=lr * math.sqrt(max(1, rows / columns)))


def _matrices(group: Mapping[str, Any]) -> Mapping[nn.Parameter, MatrixPieces | None]:
    matrices: Mapping[nn.Parameter, MatrixPieces | None] = group.get("matrices", {})
    return matrices


def orthogonal(matrix: Tensor, eps: float) -> Tensor:
    """Return a nearly orthogonal matrix with the singular vectors of another, [rows, columns].

    Args:
        eps: the least norm that it is divided by.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    found: Tensor = matrix.T if is_tall else matrix
    found = found / found.norm().clamp(min=eps)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = found @ found.T
        found = a * found + (b * gram + c * gram @ gram) @ found
    return found.T if is_tall else found
