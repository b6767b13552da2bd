"""Which bytes of which file every rank holds, as frozen data."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mimokit.architecture.modules import EMBEDDING, OUTPUT_LAYER
from mimokit.architecture.tensor_cut import Span, TensorCut
from mimokit.axes import LAYOUT_FIELDS, Axis


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of a tensor of a file that is copied into a parameter.

    Attributes:
        rows: counted in the tensor.
        columns: counted in the tensor; None for all of them.
        transposed: the block is transposed before it is put into the parameter.
        at: row and column of the parameter where it begins.
    """

    file: str
    tensor: str
    rows: Span
    columns: Span | None
    transposed: bool
    at: Span

    def to_json(self) -> dict[str, Any]:
        """Return the piece as JSON."""
        return {
            "file": self.file,
            "tensor": self.tensor,
            "rows": list(self.rows),
            "columns": None if self.columns is None else list(self.columns),
            "transposed": self.transposed,
            "at": list(self.at),
        }


@dataclass(frozen=True, slots=True)
class PlannedParameter:
    """A parameter of one rank.

    Attributes:
        shape: on the rank, with the padding of a vocabulary.
        dtype: torch's name of the dtype of loading.
        pieces: where its entries come from; what they leave open is zero.
    """

    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...]
    cut: TensorCut

    @property
    def bytes(self) -> int:
        """Bytes on the rank."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    def to_json(self) -> dict[str, Any]:
        """Return the parameter as JSON."""
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "pieces": [piece.to_json() for piece in self.pieces],
        }


DTYPE_BYTES: Mapping[str, int] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Dtypes of loading and the bytes of one entry."""


@dataclass(frozen=True)
class RankWeights:
    """What one rank holds.

    Attributes:
        layers: of the language model (of the tower where there is none).
        query_groups: the key and value heads that these use.
        vocab: rows of the vocabulary that belong to its place in the tensor parallel group, padding
            included; the first and the last stage hold them. None for a tower.
        bytes_touched: bytes of the files between the first and the last that a piece needs: the
            pages that are read. Of a column slice these are whole rows.
    """

    tensor_rank: int
    pipeline_rank: int
    layers: Span
    query_heads: Span
    query_groups: Span
    vocab: Span | None
    bytes_touched: int
    parameters: Mapping[str, PlannedParameter]

    @property
    def place(self) -> dict[str, int]:
        """Its place along each axis."""
        return {str(Axis.TENSOR): self.tensor_rank, str(Axis.PIPELINE): self.pipeline_rank}

    @property
    def bytes(self) -> int:
        """Bytes of all parameters in the dtype of loading."""
        return sum(parameter.bytes for parameter in self.parameters.values())

    @property
    def holds_vocabulary(self) -> bool:
        """Whether the rank holds rows of the token embedding or of the output layer."""
        return any(name.endswith((EMBEDDING, OUTPUT_LAYER)) for name in self.parameters)

    def to_json(self) -> dict[str, Any]:
        """Return the rank as JSON."""
        return {
            **self.place,
            "query_heads": list(self.query_heads),
            "query_groups": list(self.query_groups),
            "vocab": None if self.vocab is None else list(self.vocab),
            "bytes": self.bytes,
            "bytes_touched": self.bytes_touched,
            "parameters": {
                name: parameter.to_json() for name, parameter in self.parameters.items()
            },
        }


@dataclass(frozen=True)
class WeightPlan:
    """What all ranks hold.

    Attributes:
        vocab_size: rows of the token embedding in the files; None for a tower.
        padded_vocab_size: rows over all tensor parallel ranks.
        ranks: by number: tensor parallel neighbours are adjacent, as in `ModuleRanks`.
    """

    model_type: str
    tensor_parallel: int
    pipeline_parallel: int
    vocab_size: int | None
    padded_vocab_size: int | None
    ranks: tuple[RankWeights, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The parallel sizes, by the names that layouts have for them."""
        return {
            LAYOUT_FIELDS[Axis.TENSOR]: self.tensor_parallel,
            LAYOUT_FIELDS[Axis.PIPELINE]: self.pipeline_parallel,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return {
            "model_type": self.model_type,
            **self.sizes,
            "vocab_size": self.vocab_size,
            "padded_vocab_size": self.padded_vocab_size,
            "ranks": {str(number): rank.to_json() for number, rank in enumerate(self.ranks)},
        }


def joined_spans(spans: Iterable[Span]) -> list[Span]:
    """Return spans in their order, those that touch or overlap as one."""
    joined: list[Span] = []
    for start, stop in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return joined
