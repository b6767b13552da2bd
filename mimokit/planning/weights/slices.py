"""Which slices of the files' tensors each rank holds; layers of one kind and stage together."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mimokit.architecture.tensor_cut import Span
from mimokit.planning.weights.types import Piece, PlannedParameter, WeightPlan, joined_spans

_LAYER = re.compile(r"(?<=\blayers\.)\d+(?=\.)|(?<=\bmtp_layers\.)\d+(?=\.)|(?<=\bh\.)\d+(?=\.)")

Block = tuple[Span, Span | None]
"""Rows, and columns or None for all of them."""
Share = tuple[float, float]
"""[start, stop) of a length of 1."""


def of_any_layer(name: str) -> str:
    """Return the name of a parameter or tensor with N in place of the number of its layer."""
    return _LAYER.sub("N", name)


@dataclass(frozen=True)
class Slice:
    """A block of a tensor.

    Attributes:
        columns: likewise; None for all of them.
    """

    ranks: tuple[int, ...]
    rows: Span
    columns: Span | None


@dataclass(frozen=True)
class SlicedTensor:
    """The tensors of one kind that the ranks of one pipeline stage hold: one in each layer.

    Attributes:
        name: in the files, with N in place of the number of a layer.
        layers: as the files number them; empty for a tensor outside of layers.
        columns: of each, 1 if it has one dimension; of more dimensions all but the first.
        slices: in the order of ranks; those that several ranks hold once.
    """

    name: str
    stage: int
    layers: tuple[int, ...]
    files: tuple[str, ...]
    rows: int
    columns: int
    slices: tuple[Slice, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that hold a slice."""
        return tuple(sorted({rank for part in self.slices for rank in part.ranks}))

    def place_of(self, part: Slice) -> tuple[Share, Share]:
        """Return where a slice lies from left to right and from top to bottom, 0 to 1.

        A tensor of one dimension lies from left to right.
        """
        start, stop = (row / self.rows for row in part.rows)
        if self.columns == 1:
            return (start, stop), (0.0, 1.0)
        first, last = part.columns or (0, self.columns)
        return (first / self.columns, last / self.columns), (start, stop)

    @property
    def shape_text(self) -> str:
        """Rows and columns, or the entries of a tensor of one dimension."""
        return f"{self.rows:,}" + (f" × {self.columns:,}" if self.columns > 1 else "")

    @property
    def replicated(self) -> bool:
        """Whether several ranks hold the same slice."""
        return any(len(part.ranks) > 1 for part in self.slices)


def sliced_tensors(plan: WeightPlan) -> tuple[SlicedTensor, ...]:
    """Return the tensors of a plan, stage after stage, in the order of its parameters."""
    kinds: dict[tuple[int, str], _Kind] = {}
    for number, rank in enumerate(plan.ranks):
        for parameter in rank.parameters.values():
            for piece in parameter.pieces:
                key = rank.pipeline_rank, of_any_layer(piece.tensor)
                if key not in kinds:
                    kinds[key] = _Kind(piece.tensor, _columns(parameter, piece))
                kinds[key].add(number, piece)
    rows: dict[str, int] = {}
    for (_, name), kind in kinds.items():
        rows[name] = max(rows.get(name, 0), kind.reached())
    sliced = (
        SlicedTensor(
            name, stage, tuple(sorted(kind.layers)), tuple(kind.files), rows[name],
            kind.columns, tuple(kind.slices()),
        )
        for (stage, name), kind in kinds.items()
    )  # fmt: skip
    return tuple(sorted(sliced, key=lambda tensor: tensor.stage))


@dataclass
class _Kind:
    """The tensors of one kind and stage; those of all are like the first."""

    first: str
    columns: int
    files: dict[str, None] = field(default_factory=dict)
    layers: set[int] = field(default_factory=set)
    held: dict[int, list[Block]] = field(default_factory=dict)

    def add(self, rank: int, piece: Piece) -> None:
        self.files[piece.file] = None
        if layer := _LAYER.search(piece.tensor):
            self.layers.add(int(layer[0]))
        if piece.tensor == self.first:
            self.held.setdefault(rank, []).append((piece.rows, piece.columns))

    def reached(self) -> int:
        return max(rows[1] for blocks in self.held.values() for rows, _ in blocks)

    def slices(self) -> Iterator[Slice]:
        ranks: dict[Block, list[int]] = {}
        for rank, blocks in self.held.items():
            for rows, columns in _merged(blocks):
                whole = columns == (0, self.columns)
                ranks.setdefault((rows, None if whole else columns), []).append(rank)
        return (Slice(tuple(of), *block) for block, of in ranks.items())


def _columns(parameter: PlannedParameter, piece: Piece) -> int:
    cut = parameter.cut
    if piece.transposed:
        return cut.whole[0]
    if cut.dimension is None:  # its shape in the file may be another
        return math.prod(cut.whole) // (piece.rows[1] - piece.rows[0])
    return math.prod(cut.whole[1:])


def _merged(blocks: Iterable[Block]) -> list[Block]:
    by_columns: dict[Span | None, list[Span]] = {}
    for rows, columns in blocks:
        by_columns.setdefault(columns, []).append(rows)
    by_rows: dict[Span, list[Span]] = {}
    merged: list[Block] = []
    for columns, spans in by_columns.items():
        for rows in joined_spans(spans):
            if columns is None:
                merged.append((rows, None))
            else:
                by_rows.setdefault(rows, []).append(columns)
    merged += [(rows, span) for rows, spans in by_rows.items() for span in joined_spans(spans)]
    return merged
