"""What a module behind the language model is to write."""

from __future__ import annotations

import torch

from mimokit.engine.data.batch import Batch


def targets_of(batch: Batch, module: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the targets of a module: what the batch names, else the token after the next.

    Returns:
        Labels and loss mask, both [samples, tokens]; at every place of the language model's
        sequence the token that the module is to write there, and whether it counts.

    Raises:
        ValueError: the batch names targets of another shape than its tokens.
    """
    named = (batch.get("targets") or {}).get(module)
    if named is None:
        return _one_further(batch["labels"]), _one_further(batch["loss_mask"])
    labels, loss_mask = named["labels"], named["loss_mask"]
    wanted = batch["input_ids"].shape
    for name, tensor in (("labels", labels), ("loss_mask", loss_mask)):
        if tensor.shape != wanted:
            raise ValueError(
                f"The {name} of module {module!r} in the batch have shape {tuple(tensor.shape)}, "
                f"but its tokens {tuple(wanted)}; both must be [samples, tokens]."
            )
    return labels, loss_mask


def _one_further(values: torch.Tensor) -> torch.Tensor:
    """Move values one place forward in every sample; nothing comes after the last."""
    return torch.nn.functional.pad(values[:, 1:], (0, 1))
