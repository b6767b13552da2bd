"""Several optimizers as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class Combined(torch.optim.Optimizer):
    """Optimizers over separate parameters that step together, under one scheduler.

    Attributes:
        parts: the optimizers; their parameter groups are those of the whole.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        """Take the optimizers, at least one."""
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = tuple(parts)
        self._share_groups()

    def _share_groups(self) -> None:
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step all of them."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all of them."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._share_groups()
