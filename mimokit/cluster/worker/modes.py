"""Modes of torch that hold for a whole thread, as they were before a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TorchModes:
    """Modes of the calling thread.

    An interrupt can come while `torch.no_grad` and its kin change back what they have changed. The
    next run on the engine would then train without gradients.

    Attributes:
        gradients: whether operations are recorded for the backward pass.
        dtype: of new floating-point tensors.
    """

    gradients: bool
    dtype: torch.dtype

    @classmethod
    def now(cls) -> TorchModes:
        """Return the modes as they are."""
        import torch

        return cls(torch.is_grad_enabled(), torch.get_default_dtype())

    def restore(self) -> None:
        """Change the modes back."""
        import torch

        torch.set_grad_enabled(self.gradients)
        torch.set_default_dtype(self.dtype)
