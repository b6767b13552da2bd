"""Megatron's parameters as rows and columns of the tensors of a Hugging Face checkpoint.

A parameter of the whole model is a stack of row ranges of tensors. Which tensors is decided per
family in `language_tensors` and `vision_tensors`; its shape, its place and how it is cut come from
the table in `mimokit.architecture.tensors`; what a rank reads is worked out from both in
`mimokit.planning.weights`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mimokit.architecture.tensor_cut import Shape
from mimokit.architecture.tensors import ModuleTensor


@dataclass(frozen=True, slots=True)
class Source:
    """A range of rows of a parameter, as it lies in a tensor of the file.

    Attributes:
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
        row: its row of the table of tensors.
        sources: the ranges that follow one another along its rows.
        transposed: the tensors of the file have its columns as their rows.
    """

    row: ModuleTensor
    sources: tuple[Source, ...]
    transposed: bool = False


@dataclass
class CheckpointTensors:
    """What a checkpoint of a model must contain, and what becomes of it.

    Attributes:
        table: the tensors of the model, by name.
        tensors: name in the file -> shape.
        passed_over: beginnings and endings of names, or whole names, of tensors that are not
            parameters of the planned model.
    """

    table: Mapping[str, ModuleTensor]
    tensors: dict[str, Shape] = field(default_factory=dict)
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

    def copy(self, name: str, tensor: str, stored: Shape | None = None) -> None:
        """Add a parameter that is one tensor of the file.

        Args:
            stored: shape in the file, where it differs: it has as many entries in the same order.
        """
        stored = stored or self.table[name].cut.whole
        self.tensors[tensor] = stored
        source = Source(tensor, 0, stored[0])
        self.parameters.append(WholeParameter(self.table[name], (source,)))

    def stack(self, name: str, tensors: Sequence[str], *, transposed: bool = False) -> None:
        """Add a parameter that stacks whole tensors of equal height."""
        height = self.table[name].cut.whole[0] // len(tensors)
        sources = [Source(tensor, 0, height) for tensor in tensors]
        self.fuse(name, dict.fromkeys(tensors, height), sources, transposed=transposed)

    def fuse(
        self, name: str, rows: Mapping[str, int], sources: Iterable[Source], *,
        transposed: bool = False,
    ) -> None:  # fmt: skip
        """Add a parameter that takes its rows from several ranges.

        Args:
            rows: tensor -> its rows (its columns if transposed).
            sources: the ranges, in the order of the parameter's rows.
            transposed: the file has columns as rows; those of vectors are not.
        """
        row = self.table[name]
        across = row.cut.whole[1:]
        for tensor, length in rows.items():
            self.tensors[tensor] = (*across, length) if transposed else (length, *across)
        whole = WholeParameter(row, tuple(sources), transposed and bool(across))
        self.parameters.append(whole)
