"""What every pipeline stage computes from, hands on and implements, and the shapes that cross.

Shapes are agreed on before anything crosses: one example item or sample stands for all, as their
number differs from micro-batch to micro-batch and each message says it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from mimokit.engine.data.batch import Batch
from mimokit.engine.models.rng import random_state_of
from mimokit.engine.parallel.data_parallel import ModuleDataParallel

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


@dataclass
class StageInput:
    """What a stage computes one micro-batch from.

    Attributes:
        batch: what this rank has read, None on a stage that reads nothing.
        hidden: edge -> tensor received over it, a leaf whose gradient goes back.
        counts: edge -> the numbers per sample that came with it: items, or rows; with rows that
            have sizes, images as well.
        integers: edge -> sizes or positions that came with it.
    """

    batch: Batch | None
    hidden: dict[int, torch.Tensor]
    counts: dict[int, list[list[int]]]
    integers: dict[int, tuple[torch.Tensor, ...]] = field(default_factory=dict)


@dataclass
class StageOutput:
    """What a stage hands on.

    Attributes:
        tensor: hidden states or rows; logits where nobody takes any.
        counts: numbers per sample: items, or rows, and images where rows have sizes. The language
            model has none between its stages: all its samples are as long.
        integers: sizes or positions that the next stage needs, int64.
        logits: [samples, tokens, vocabulary / TP], where the module has a loss here.
    """

    tensor: torch.Tensor
    counts: list[list[int]]
    integers: tuple[torch.Tensor, ...] = ()
    logits: torch.Tensor | None = None


class PipelineStage(ABC):
    """What one stage computes.

    Args:
        name: of the module.
        first: nobody of the same module comes before it.
        last: nobody of the same module comes after it.
    """

    def __init__(self, name: str, first: bool, last: bool) -> None:
        self.name = name
        self.first = first
        self.last = last

    @abstractmethod
    def forward(self, given: StageInput) -> StageOutput:
        """Compute a micro-batch."""

    @abstractmethod
    def infer(self, given: Mapping[int, Shapes]) -> Shapes:
        """Return shapes and types of what it hands on: tensors on the device "meta".

        Args:
            given: edge -> what comes in over it.

        Raises:
            ValueError: something comes in that the stage cannot take.
        """

    @property
    def ends(self) -> bool:
        """Whether the language model ends here: it gives logits."""
        return False

    def loss(self, output: StageOutput, batch: Batch) -> tuple[torch.Tensor, int] | None:
        """Return (sum of losses, unmasked tokens) where the module has a loss here."""
        return None

    def tokens(self, output: StageOutput, batch: Batch | None) -> int:
        """Count tokens at the end of a module, where each is seen once per replica."""
        return len(output.tensor) if self.last else 0


class ModuleStage(PipelineStage):
    """One pipeline stage of one module of Megatron's.

    Args:
        name: of the module.
        wrapped: its part on this rank, with data parallel.
        first: nobody of the same module comes before it.
        last: nobody of the same module comes after it.
    """

    def __init__(self, name: str, wrapped: ModuleDataParallel, first: bool, last: bool) -> None:
        super().__init__(name, first, last)
        self.wrapped = wrapped

    def forward(self, given: StageInput) -> StageOutput:
        """Compute a micro-batch with the random state of the module."""
        with random_state_of(self.name):
            return self._forward(given)

    @abstractmethod
    def _forward(self, given: StageInput) -> StageOutput: ...

    @property
    def dtype(self) -> torch.dtype:
        """Type of its weights, and so of what it takes and gives."""
        dtype: torch.dtype = next(self.wrapped.parameters()).dtype
        return dtype
