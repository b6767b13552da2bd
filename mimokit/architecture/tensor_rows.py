"""A row of the table of tensors, from which parameters and matrix products follow."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from mimokit.architecture.tensor_cut import Span, TensorCut, padded_vocabulary
from mimokit.config.meaning import Normalization
from mimokit.config.sizes import Numbers, ParallelSizes

NORMED = "normalized input of attention"
QUERIES, KEYS = "compressed query", "compressed key and value"
CORE = "output of the attention core"
NORMED_AGAIN = "normalized input of the feed-forward layer"
INNER = "output of the activation function"
ROUTED, ROUTED_INNER = "token of an expert", "output of an expert's activation function"
ROUTER = "input of the router"


class End(Enum):
    """Where a tensor outside the layers lies in a pipeline."""

    FIRST = "the first stage"
    LAST = "the last stage"
    LAST_COPY = "the last stage, if it is not the first as well"


Place = int | End
"""The number of a layer, or an end."""


@dataclass(frozen=True, slots=True)
class ModuleTensor:
    """A tensor of a module: a row of the table.

    Attributes:
        name: Megatron's, with the number that a layer has in the whole module.
        place: number of its layer, or the end of the pipeline that holds it.
        copy_of: the tensor that this one is a copy of, on another stage; only that one is saved.
        trains: whether gradients move it, where its module is not frozen.
        of: what a layer multiplies with it, or adds it to the product of; None: neither.
    """

    name: str
    cut: TensorCut
    place: Place
    copy_of: str | None = None
    trains: bool = True
    of: str | None = None

    def is_on(self, stage: int, layers: tuple[Span, ...]) -> bool:
        """Whether a stage holds it."""
        if isinstance(self.place, int):
            start, stop = layers[stage]
            return start <= self.place < stop
        if self.place is End.FIRST:
            return stage == 0
        last = stage == len(layers) - 1
        return last and (self.place is End.LAST or stage > 0)


Tensors = Iterator[ModuleTensor]


def uncut(name: str, place: Place, *shape: int, of: str | None = None) -> ModuleTensor:
    """Return a tensor that every rank has whole."""
    return ModuleTensor(name, TensorCut(shape), place, of=of)


def norm(name: str, kind: Normalization, width: int, place: Place) -> Tensors:
    """Yield a norm: a scale, and for LayerNorm a shift."""
    yield uncut(f"{name}.weight", place, width)
    if kind == "LayerNorm":
        yield uncut(f"{name}.bias", place, width)


def cut_outputs(
    name: str,
    place: Place,
    shape: tuple[int, int],
    bias: int | None,
    parts: int = 1,
    of: str | None = None,
) -> Tensors:
    """Yield a matrix of which ranks share the outputs, and so many numbers of its bias."""
    yield ModuleTensor(f"{name}.weight", TensorCut(shape, 0, parts), place, of=of)
    if bias is not None:
        yield ModuleTensor(f"{name}.bias", TensorCut((bias,), 0, parts), place, of=of)


def cut_inputs(
    name: str, place: Place, shape: tuple[int, int], bias: bool, of: str | None = None
) -> Tensors:
    """Yield a matrix of which ranks share the inputs, and its bias.

    The bias is added behind the sum over ranks, with the residual.
    """
    yield ModuleTensor(f"{name}.weight", TensorCut(shape, 1), place, of=of)
    if bias:
        yield uncut(f"{name}.bias", place, shape[0])


@dataclass(frozen=True)
class Parameters:
    """The parameters of some tensors, by how parallelism shards them.

    Attributes:
        sharded: cut by tensor parallelism.
        replicated: whole on every tensor-parallel rank.
        expert: cut by expert parallelism (and expert tensor parallelism): the routed experts.
        visited: of `expert`, those that a token visits.
        tables: (rows, their multiple, width) of tables that are padded before they are cut.
    """

    sharded: int = 0
    replicated: int = 0
    expert: int = 0
    visited: int = 0
    tables: tuple[tuple[int, int, int], ...] = ()

    @property
    def total(self) -> int:
        """All parameters, without padding."""
        tables = sum(rows * width for rows, _, width in self.tables)
        return self.sharded + self.replicated + self.expert + tables

    @property
    def active(self) -> int:
        """Parameters that a token visits."""
        return self.total - self.expert + self.visited

    def ordinary(self, sizes: ParallelSizes) -> Numbers:
        """Return those on one rank that belong to no routed expert."""
        padded: Numbers = 0
        for rows, multiple, width in self.tables:
            padded = padded + padded_vocabulary(rows, multiple, sizes.tensor) * width
        return (self.sharded + padded) / sizes.tensor + self.replicated


def parameters_of(rows: Iterable[ModuleTensor], top_k: int = 0) -> Parameters:
    """Return the parameters of rows, in which one expert of a layer stands for all."""
    sharded = replicated = expert = visited = 0
    tables = []
    for row in rows:
        cut, entries = row.cut, math.prod(row.cut.whole)
        if cut.expert is not None:
            expert, visited = expert + cut.experts * entries, visited + top_k * entries
        elif cut.dimension is None:
            replicated += entries
        elif cut.multiple is None:
            sharded += entries
        else:
            tables.append((cut.whole[0], cut.multiple, cut.whole[1]))
    return Parameters(sharded, replicated, expert, visited, tuple(tables))
