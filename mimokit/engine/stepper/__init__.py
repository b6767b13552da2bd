"""Stepping through a training step on a rank; `live` returns the tensors that exist now.

Between two steps of a `mimokit.experiment.Stepper` its ranks are idle, and in `%%px` or a function
of `cluster.run` this works:

    from mimokit.engine.stepper import live
    live()["microbatch.0.output.tensor"].norm()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def live() -> dict[str, torch.Tensor]:
    """Return the tensors that the suspended step of this rank holds, by name, not copied.

    Raises:
        RuntimeError: no stepper is open on this rank.
    """
    from mimokit.engine.stepper.session import current

    return current().tensors()
