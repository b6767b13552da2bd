"""One flat buffer for many tensors, so that an exchange is one collective."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor


def common_dtype(tensors: Iterable[Tensor]) -> torch.dtype:
    """Return the type in which tensors are summed: fp32, or fp64 if one of them has it."""
    wide = any(one.dtype == torch.float64 for one in tensors)
    return torch.float64 if wide else torch.float32


def trainable(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that train, by name; a tied one once."""
    return {name: one for name, one in model.named_parameters() if one.requires_grad}


class Bucket:
    """A flat buffer with a view for each tensor.

    Attributes:
        flat: the buffer, of `common_dtype`.
        views: a part of the buffer for each tensor, in its shape.
        firsts: the place of the first entry of each tensor that has entries.
    """

    def __init__(self, tensors: Sequence[Tensor], extra: int = 0) -> None:
        """Take as many entries as the tensors have, and `extra` ones behind them."""
        sizes = [one.numel() for one in tensors]
        device = tensors[0].device if tensors else torch.device("cpu")
        self.flat = torch.zeros(sum(sizes) + extra, dtype=common_dtype(tensors), device=device)
        parts = self.flat[: sum(sizes)].split_with_sizes(sizes) if sizes else ()
        starts = [end - size for size, end in zip(sizes, accumulate(sizes), strict=True) if size]
        self.firsts = torch.tensor(starts, dtype=torch.int64, device=device)
        self.views = [part.view(one.shape) for part, one in zip(parts, tensors, strict=True)]

    @torch.no_grad()
    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy tensors into the buffer."""
        for view, one in zip(self.views, tensors, strict=True):
            view.copy_(one)

    @torch.no_grad()
    def write(self, tensors: Sequence[Tensor]) -> None:
        """Copy the buffer into tensors; they share no memory with it."""
        for view, one in zip(self.views, tensors, strict=True):
            one.copy_(view)


def chosen(named: Mapping[str, Tensor], names: Sequence[str]) -> list[Tensor]:
    """Return tensors by name, without those that another node has."""
    return [named[name] for name in names if name in named]
