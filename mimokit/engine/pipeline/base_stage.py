"""The inputs, outputs and interface of every pipeline stage, and the shapes of its messages.

Stages agree on shapes before they send anything. One example item or sample stands for all: their
number differs between micro-batches, and each message contains it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

from mimokit.engine.data.batch import Batch
from mimokit.engine.models.chunks import chunks_of
from mimokit.engine.models.rng import mask_rows, random_state_of
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.engine.parallel.full_shards import dtype_computed_in
from mimokit.engine.parallel.row import SampleRow
from mimokit.engine.ragged import Ragged


class ShapeMismatchError(ValueError):
    """Two stages disagree on the shape or type of a message; `str()` names both."""


def meta_like(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor without data."""
    return torch.empty(shape, dtype=dtype, device="meta")


def hidden_of(sent: Ragged, width: int, dtype: torch.dtype, taker: str) -> torch.Tensor:
    """Return the hidden states or rows of a message after checking that the stage accepts them.

    Raises:
        ShapeMismatchError: their width or type is different.
    """
    hidden = sent.tensor
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
    """The inputs of a stage for one micro-batch.

    Attributes:
        batch: the batch that this rank read; None on a stage that reads no data.
        received: edge -> what came over it; its tensor is a leaf whose gradient is sent back.
        step: optimizer steps before this one; None where no schedule runs the stage.
    """

    batch: Batch | None
    received: dict[int, Ragged] = field(default_factory=dict)
    step: int | None = None
    microbatch: int = 0


@dataclass(frozen=True)
class StageOutput(Ragged):
    """The outputs of a stage: what the next one takes; where none follows, the tensor is logits.

    Attributes:
        logits: [samples, tokens of this rank, vocabulary / TP], on a stage that computes a loss.
        row: in which samples are; logits are [1, places of this rank, vocabulary / TP] then.
        further: logits of tokens further on, likewise, one for each layer that predicts them.
    """

    logits: torch.Tensor | None = None
    row: SampleRow | None = None
    further: Sequence[torch.Tensor] = ()


@dataclass(frozen=True)
class FurtherLoss:
    """The loss of tokens further on, of all layers that predict them, or that of an image decoder.

    Attributes:
        loss_sum: sum over unmasked tokens, or over rows of pixels.
        num_tokens: number of these.
    """

    weighted: torch.Tensor
    loss_sum: float
    num_tokens: float


class PipelineStage(ABC):
    """The computation of one stage, which may be the first or the last of its module, or both.

    Attributes:
        columns: edge -> the columns of its output that cross it, where not all of them do.
    """

    columns: Mapping[int, slice] = MappingProxyType({})

    def __init__(self, name: str, first: bool, last: bool) -> None:
        self.name = name
        self.first = first
        self.last = last

    @abstractmethod
    def forward(self, given: StageInput) -> StageOutput:
        """Compute a micro-batch."""

    @abstractmethod
    def infer(self, given: Mapping[int, Ragged]) -> Ragged:
        """Return the shapes and types of its outputs for those received over each edge, on "meta".

        Raises:
            ValueError: the stage does not accept one of the inputs.
        """

    def part_for(self, edge: int, output: torch.Tensor) -> torch.Tensor:
        """Return what of its output crosses an edge."""
        columns = self.columns.get(edge)
        return output if columns is None else output[..., columns].contiguous()

    def whole_of(self, edge: int, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of its whole output, of that of what crossed an edge."""
        columns = self.columns.get(edge)
        if columns is None:
            return gradient
        width = max(own.stop for own in self.columns.values())
        return torch.nn.functional.pad(gradient, (columns.start, width - columns.stop))

    @property
    def modules(self) -> Sequence[ModuleDataParallel]:
        """The wrapped modules that it computes with."""
        return ()

    @property
    def parts(self) -> Sequence[tuple[ModuleDataParallel, torch.nn.Module | None]]:
        """Its modules, and the chunk of each that it computes with; None: all of it."""
        return [(module, None) for module in self.modules]

    @property
    def ends(self) -> bool:
        """Whether this is the last stage of the language model, which computes logits."""
        return False

    def loss(self, output: StageOutput, batch: Batch | None) -> tuple[torch.Tensor, float] | None:
        """Return (sum of losses, unmasked tokens) on a stage that computes a loss, else None."""
        return None

    def further_loss(self, output: StageOutput, batch: Batch | None) -> FurtherLoss | None:
        """Return a loss that that of the step does not count; None where a stage has none."""
        return None

    def whole_logits(self, output: StageOutput, batch: Batch) -> torch.Tensor:
        """Return the logits of whole samples, [samples, tokens, vocabulary / TP]. Collective."""
        raise NotImplementedError(f"{self.name!r} computes no logits")

    def tokens(self, output: StageOutput, batch: Batch | None) -> int:
        """Count tokens on the last stage of a module, where each occurs once per replica."""
        return len(output.tensor) if self.last else 0

    def module_tokens(self, output: StageOutput, batch: Batch | None) -> dict[str, int]:
        """Return module -> tokens, of all modules that the stage computes."""
        return {self.name: self.tokens(output, batch)}


@dataclass(frozen=True)
class Pass:
    """What a forward pass is told next to its inputs.

    Attributes:
        lengths: tokens of the samples without padding; None where all tokens count.
        row: in which the samples are; None: each is a column of the batch.
    """

    lengths: list[int] | None = None
    row: SampleRow | None = None


@dataclass(frozen=True)
class StagePlace:
    """Which part of a module a stage is.

    Attributes:
        wrapped: what this rank has of the module.
        chunk: of those on this rank that the stage is.
    """

    name: str
    wrapped: ModuleDataParallel
    first: bool
    last: bool
    chunk: int = 0


class ModuleStage(PipelineStage):
    """One stage of a Megatron module.

    Attributes:
        samples: of a step and a micro-batch -> numbers in the global batch of those that this rank
            computes.
    """

    samples: Callable[[int, int], Sequence[int]]

    def __init__(self, place: StagePlace) -> None:
        super().__init__(place.name, place.first, place.last)
        self.wrapped = place.wrapped
        self._part = chunks_of(place.wrapped.module)[place.chunk]
        self.samples = lambda step, microbatch: range(0)

    def forward(self, given: StageInput) -> StageOutput:
        """Compute a micro-batch with the random state of the module."""
        rows, told = None, self._told(given)
        if given.step is not None:
            samples = self.samples(given.step, given.microbatch)
            rows = mask_rows(given.step, samples, self._items(given))
        with random_state_of(self.name, rows, told.lengths, told.row):
            return self._forward(given, told)

    def _told(self, given: StageInput) -> Pass:
        return Pass()

    def _items(self, given: StageInput) -> Sequence[int] | None:
        """Return the items of every sample; None where each sample is one row."""
        return None

    @abstractmethod
    def _forward(self, given: StageInput, told: Pass) -> StageOutput: ...

    @property
    def modules(self) -> Sequence[ModuleDataParallel]:
        """The part of its module on this rank."""
        return (self.wrapped,)

    @property
    def parts(self) -> Sequence[tuple[ModuleDataParallel, torch.nn.Module | None]]:
        """Its modules, each with its chunk: None, except for a module that is in chunks."""
        chunk = None if self._part is self.wrapped.module else self._part
        return [(module, chunk if module is self.wrapped else None) for module in self.modules]

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights, inputs and outputs."""
        return dtype_computed_in(next(self.wrapped.parameters()))


def rows_inferred(shape: tuple[int, int], dtype: torch.dtype, with_grids: bool) -> Ragged:
    """Return the rows of one item on "meta"."""
    rows, samples = meta_like(shape, dtype), [shape[0]]
    if not with_grids:
        return Ragged(rows, samples)
    return Ragged(rows, samples, items=[1], sizes=meta_like((1, 3), torch.int64))
