"""Shapes and types of what crosses between stages, agreed on before anything does.

One example item (or sample) stands for all: how many there are differs from micro-batch to
micro-batch, and each message says it. What does not differ is checked here, once.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

Shapes: TypeAlias = tuple[torch.Tensor, ...]
"""Tensors on the device "meta", in the order of their slots."""


class ShapeMismatchError(ValueError):
    """Two stages do not agree on what crosses; `str()` names both shapes."""


def meta_like(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor without data."""
    return torch.empty(shape, dtype=dtype, device="meta")


def hidden_of(shapes: Shapes, width: int, dtype: torch.dtype, taker: str) -> torch.Tensor:
    """Return the hidden states or rows of a message, once they are what the stage takes.

    Raises:
        ShapeMismatchError: their width or type is another.
    """
    hidden = shapes[0]
    if hidden.shape[-1] != width or hidden.dtype != dtype:
        wanted = (*hidden.shape[:-1], width)
        raise ShapeMismatchError(
            f"'{taker}' takes {_text(wanted, dtype)}, but is to be sent "
            f"{_text(tuple(hidden.shape), hidden.dtype)}; both must have the same width and type."
        )
    return hidden


def _text(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{shape} in {str(dtype).removeprefix('torch.')}"
