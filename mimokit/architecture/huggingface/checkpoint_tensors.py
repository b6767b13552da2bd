"""Megatron's parameters as rows and columns of the tensors of a Hugging Face checkpoint.

A parameter of the whole model is a stack of row ranges of tensors. Tensor parallelism cuts its rows
or its columns. Which tensors and which cut is decided per family in `language_tensors` and
`vision_tensors`; the shards that follow are worked out in `mimokit.planning.weights`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum


class Cut(Enum):
    """The dimension of a parameter that tensor parallelism cuts."""

    NONE = "whole on every rank"
    ROWS = "rows"
    COLUMNS = "columns"


class End(Enum):
    """Where a parameter outside the layers lies in a pipeline."""

    FIRST = "the first stage"
    LAST = "the last stage"
    LAST_COPY = "the last stage, if it is not the first as well"


@dataclass(frozen=True, slots=True)
class Source:
    """A range of rows of a parameter, as it lies in a tensor of the file.

    Attributes:
        tensor: name in the file.
        start: first row, counted in the tensor; its first column if it is stored transposed.
        stop: one past the last.
    """

    tensor: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class WholeParameter:
    """A parameter of the whole model.

    Attributes:
        name: Megatron's name.
        shape: without padding.
        sources: the ranges that follow one another along its rows.
        cut: what tensor parallelism cuts.
        place: number of its layer, or the end of the pipeline that holds it.
        parts: equal parts of its rows of which every rank has a share (2: gate above up).
        transposed: the tensors of the file have its columns as their rows.
        padded: its rows are padded with zeros to a multiple of the tensor parallel size.
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[Source, ...]
    cut: Cut
    place: int | End
    parts: int = 1
    transposed: bool = False
    padded: bool = False


@dataclass
class CheckpointTensors:
    """What a checkpoint of a model must contain, and what becomes of it.

    Attributes:
        tensors: name in the file -> shape.
        parameters: of the whole model.
        passed_over: beginnings and endings of names, or whole names, of tensors that are not
            parameters of the planned model.
    """

    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    parameters: list[WholeParameter] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)

    def passes_over(self, name: str) -> bool:
        """Whether a tensor is known, and no parameter: a buffer, or of a part left out.

        A pattern that ends in a dot is the beginning of names, one that begins with a dot their
        ending.
        """
        return any(
            name.startswith(pattern)
            if pattern.endswith(".")
            else name.endswith(pattern)
            if pattern.startswith(".")
            else name == pattern
            for pattern in self.passed_over
        )

    def whole(
        self, name: str, tensor: str, shape: tuple[int, ...], place: int | End,
        stored: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        """Add a parameter that every rank of a stage holds whole.

        Args:
            name: Megatron's.
            tensor: in the file.
            place: as in `WholeParameter`.
            stored: shape in the file, where it differs: it has as many entries in the same order.
        """
        stored = stored or shape
        self.tensors[tensor] = stored
        source = Source(tensor, 0, stored[0])
        self.parameters.append(WholeParameter(name, shape, (source,), Cut.NONE, place))

    def matrix(
        self, name: str, tensor: str, shape: tuple[int, int], cut: Cut, place: int | End,
        *, transposed: bool = False, padded: bool = False,
    ) -> None:  # fmt: skip
        """Add a matrix that is one tensor of the file."""
        self.stack(name, {tensor: shape[0]}, shape, cut, place, transposed=transposed,
                   padded=padded)  # fmt: skip

    def stack(
        self, name: str, rows: Mapping[str, int], shape: tuple[int, ...], cut: Cut,
        place: int | End, *, transposed: bool = False, padded: bool = False,
    ) -> None:  # fmt: skip
        """Add a parameter that stacks whole tensors, of each of which every rank has a share."""
        sources = [Source(tensor, 0, length) for tensor, length in rows.items()]
        self.fused(name, rows, sources, shape, cut, place, parts=len(sources),
                   transposed=transposed, padded=padded)  # fmt: skip

    def fused(
        self, name: str, rows: Mapping[str, int], sources: Iterable[Source],
        shape: tuple[int, ...], cut: Cut, place: int | End, *, parts: int = 1,
        transposed: bool = False, padded: bool = False,
    ) -> None:  # fmt: skip
        """Add a parameter that takes its rows from several ranges.

        Args:
            name: Megatron's.
            rows: tensor -> its rows (its columns if transposed).
            sources: the ranges, in the order of the parameter's rows.
            cut: as in `WholeParameter`, like the rest.
            place: likewise.
            parts: likewise.
            transposed: likewise; vectors are not.
            padded: likewise.
        """
        across = shape[1:]
        for tensor, length in rows.items():
            self.tensors[tensor] = (*across, length) if transposed else (length, *across)
        self.parameters.append(
            WholeParameter(
                name, shape, tuple(sources), cut, place, parts, transposed and bool(across), padded
            )
        )
