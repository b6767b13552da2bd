"""Decides which bytes of which file every rank holds, from headers and config alone."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping

from mimokit.architecture.huggingface.families import Family, family_of
from mimokit.architecture.huggingface.weight_tensors import WholeParameter
from mimokit.architecture.layers_on_stage import stage_spans
from mimokit.architecture.tensor_cut import Shape, ShardPlace, Span, TensorShard
from mimokit.axes import LAYOUT_FIELDS, Axis
from mimokit.config.errors import ConfigError, refuse_if_any, unknown_name
from mimokit.config.sizes import ParallelSizes
from mimokit.planning.ranks import DIMENSIONS, RankGrid
from mimokit.planning.weights.directory import (
    FLOATING,
    StoredTensor,
    WeightDirectory,
    read_directory,
    refused,
)
from mimokit.planning.weights.types import (
    DTYPE_BYTES,
    Piece,
    PlannedParameter,
    RankWeights,
    WeightPlan,
    joined_spans,
)
from mimokit.units import counted, listed

MOST_RANKS = 2**14
"""Ranks that are planned at most."""


def check_tensors(weights: WeightDirectory, family: Family) -> None:
    """Raise `ConfigError` unless the files contain just the tensors that the config describes."""
    stored, wanted = weights.tensors, family.found.tensors
    where = weights.directory
    problems: list[ConfigError] = []
    missing = [name for name in wanted if name not in stored]
    if missing:
        problems.append(refused(where, missing[0], None, f"{_some(missing)} in none of its files, "
                                "but config.json describes a model that has it"))  # fmt: skip
    unexpected = [
        name for name in stored if name not in wanted and not family.found.passes_over(name)
    ]
    if unexpected:
        what = f"{_some(unexpected)} in {stored[unexpected[0]].file}, but no part of the model"
        problems.append(refused(where, unexpected[0], None, f"{what} that config.json describes"))
    for name, shape in wanted.items():
        if (tensor := stored.get(name)) is None:
            continue
        file, has = where / tensor.file, list(tensor.shape)
        if tensor.shape != shape:
            what = f"{name} has the shape {has}, and config.json makes it {list(shape)}"
            problems.append(refused(file, name, tensor.shape, what))
        elif tensor.dtype not in FLOATING:
            right = listed([*FLOATING])
            what = f"{name} is stored as {tensor.dtype}; only {right} can be read"
            problems.append(refused(file, name, tensor.dtype, what))
        if len(problems) == 3:
            break
    problems += _mixed_dtypes(weights, family)
    refuse_if_any(problem for error in problems for problem in error.problems)


def _mixed_dtypes(weights: WeightDirectory, family: Family) -> Iterator[ConfigError]:
    stored = weights.tensors
    for parameter in family.found.parameters:
        names = {source.tensor for source in parameter.sources if source.tensor in stored}
        dtypes = {stored[name].dtype: name for name in sorted(names)}
        if len(dtypes) > 1:
            (first, name), (second, other) = list(dtypes.items())[:2]
            what = f"{name} is stored as {first} and {other} as {second}"
            right = f"they form {parameter.row.name}, and must have one dtype"
            yield refused(weights.directory, name, [*dtypes], f"{what}; {right}")
            return


def _some(names: list[str]) -> str:
    others = len(names) - 1
    if not others:
        return f"{names[0]} is"
    return f"{names[0]} and {counted(others, 'other')} are"


def check_sizes(family: Family, tensor_parallel: int, pipeline_parallel: int) -> None:
    """Raise `ConfigError` unless a layout can cut a model."""
    for axis, size in ((Axis.TENSOR, tensor_parallel), (Axis.PIPELINE, pipeline_parallel)):
        if size < 1:
            name = LAYOUT_FIELDS[axis]
            raise refused("Layout", name, size, f"{name} is {size}; it must be at least 1")
    if tensor_parallel * pipeline_parallel > MOST_RANKS:
        ranks = tensor_parallel * pipeline_parallel
        raise refused("Layout", "ranks", ranks, f"tensor_parallel {tensor_parallel} times "
                      f"pipeline_parallel {pipeline_parallel} are {ranks:,} ranks; at most "
                      f"{MOST_RANKS:,} can be planned")  # fmt: skip
    for whose, net in family.nets.items():
        numbers = {"attention heads": net.heads}
        if net.dense_layers:
            numbers["feed-forward width"] = net.ffn
        for what, number in numbers.items():
            if number % tensor_parallel:
                raise _undivided(tensor_parallel, f"the {what} of {whose}, {number}", number)
        groups = net.kv_heads
        if groups % tensor_parallel and tensor_parallel % groups:
            sentence = (
                f"tensor_parallel {tensor_parallel} neither divides the {groups} key and value "
                f"groups of {whose} nor is a multiple of them; choose a divisor or a multiple"
            )
            raise refused("Layout", "tensor_parallel", tensor_parallel, sentence)
        if (net.heads + 2 * groups) * net.head_dim % tensor_parallel:
            raise _undivided(
                tensor_parallel, f"the rows of query, key and value of {whose}", groups
            )
    for parameter in family.found.parameters:
        cut = parameter.row.cut
        if cut.expert is None and not cut.divides(tensor_parallel):
            what = f"{parameter.row.name} {list(cut.whole)}"
            raise _undivided(tensor_parallel, what, cut.whole[cut.dimension or 0])
    layers = family.stacked.layers
    if pipeline_parallel > layers:
        sentence = (
            f"pipeline_parallel is {pipeline_parallel}, and the model has "
            f"{counted(layers, 'layer')}; a stage needs at least one"
        )
        raise refused("Layout", "pipeline_parallel", pipeline_parallel, sentence)
    _check_split(layers, family.further_layers, pipeline_parallel)


def _check_split(layers: int, further: int, stages: int) -> None:
    ends = layers + 2 + further
    if layers % stages == 0 or (ends % stages == 0 and ends // stages > further):
        return
    counted_too, why = "embedding and loss", ""
    if further:
        counted_too = f"embedding, loss and {counted(further, 'layer')} of further tokens"
        why = ", or the last stage has no room for its end"
    sentence = (
        f"pipeline_parallel {stages} divides neither the {counted(layers, 'layer')} nor, with "
        f"{counted_too} counted as layers, {ends}{why}; choose a size that divides one"
    )
    raise refused("Layout", "pipeline_parallel", stages, sentence)


def _undivided(size: int, what: str, number: int) -> ConfigError:
    sentence = f"tensor_parallel {size} does not divide {what}; choose a divisor"
    return refused("Layout", "tensor_parallel", number, sentence)


Source = WeightDirectory | str | os.PathLike[str]


class WeightPlanner:
    """The checks of the weights of one directory in one layout, and the plans of its ranks.

    Args:
        dtype: torch's name of the dtype of loading; None: as in the files.
        family: the tensors to plan; None: all of the files.

    Raises:
        ConfigError: config and files contradict each other, or the sizes cannot cut this model.
    """

    def __init__(
        self,
        source: Source,
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
        dtype: str | None = None,
        family: Family | None = None,
    ) -> None:
        self.stored = source if isinstance(source, WeightDirectory) else read_directory(source)
        if family is None:
            family = family_of(self.stored.config, self.stored.tensors)
        self.family = family
        if dtype is not None and dtype not in DTYPE_BYTES:
            raise unknown_name("Dtype", dtype, DTYPE_BYTES)
        check_tensors(self.stored, self.family)
        check_sizes(self.family, tensor_parallel, pipeline_parallel)
        self.grid = RankGrid(DIMENSIONS, (tensor_parallel, 1, 1, pipeline_parallel))
        self._dtype = dtype
        stages = ParallelSizes(pipeline=pipeline_parallel)
        self._stages = stage_spans(self.family.stacked.layers, stages, self.family.further_layers)
        self._by_stage: dict[int, list[WholeParameter]] = defaultdict(list)
        for parameter in self.family.found.parameters:
            for stage in range(pipeline_parallel):
                if parameter.row.is_on(stage, self._stages):
                    self._by_stage[stage].append(parameter)

    def plan(self) -> WeightPlan:
        """Return the plan of all ranks."""
        tensor, _, _, pipeline = self.grid.shape
        family, language = self.family, self.family.language
        padded = None if language is None else int(language.padded_vocab(tensor))
        ranks = tuple(map(self.rank, self.grid.ranks))
        return WeightPlan(family.model_type, tensor, pipeline, family.vocab, padded, ranks)

    def rank(self, number: int, shards: ShardPlace | None = None) -> RankWeights:
        """Return the plan of one rank.

        Args:
            shards: its place among those of its stage, which says what experts it has; None: that
                of a model without experts.
        """
        place = self.grid.coordinates(number)
        rank, stage, size = place["tp"], place["pp"], self.grid.shape[0]
        net, language = self.family.stacked, self.family.language
        shards = shards or ShardPlace(size, rank)
        parameters = {
            parameter.row.name: self._shard(parameter, shards)
            for parameter in self._by_stage[stage]
            if parameter.row.cut.at(shards).is_held
        }
        part = None if language is None else int(language.padded_vocab(size)) // size
        return RankWeights(
            tensor_rank=rank,
            pipeline_rank=stage,
            layers=self._stages[stage],
            query_heads=(rank * net.heads // size, (rank + 1) * net.heads // size),
            query_groups=(rank * net.kv_heads // size, -(-(rank + 1) * net.kv_heads // size)),
            vocab=None if part is None else (rank * part, (rank + 1) * part),
            bytes_touched=_touched(parameters, self.stored.tensors),
            parameters=parameters,
        )

    def _shard(self, parameter: WholeParameter, place: ShardPlace) -> PlannedParameter:
        shape, pieces = shard(parameter, self.stored.tensors, place)
        stored = self.stored.tensors[parameter.sources[0].tensor].dtype
        dtype = self._dtype or FLOATING[stored]
        return PlannedParameter(shape, dtype, pieces, parameter.row.cut)


def plan_weights(
    source: Source, tensor_parallel: int = 1, pipeline_parallel: int = 1, dtype: str | None = None
) -> WeightPlan:
    """Return which bytes of which file every rank holds. No tensor is read.

    Args:
        source: a directory with config.json and safetensors files, or what `read_directory`
            returned for it.
        pipeline_parallel: stages. Of a LLaVA the language model is cut into stages; tower and
            projector lie on the first.
        dtype: torch's name of the dtype of loading; None: as in the files.

    Raises:
        ConfigError: as `WeightPlanner`, or a file is missing or damaged.
    """
    return WeightPlanner(source, tensor_parallel, pipeline_parallel, dtype).plan()


def _touched(
    parameters: Mapping[str, PlannedParameter], tensors: Mapping[str, StoredTensor]
) -> int:
    """Return the bytes of the rows that pieces need, each counted once."""
    rows: dict[str, list[Span]] = defaultdict(list)
    for parameter in parameters.values():
        for piece in parameter.pieces:
            rows[piece.tensor].append(piece.rows)
    return sum(
        (stop - start) * tensors[name].row_bytes
        for name, spans in rows.items()
        for start, stop in joined_spans(spans)
    )


def shard(
    parameter: WholeParameter, tensors: Mapping[str, StoredTensor], place: ShardPlace
) -> tuple[Shape, tuple[Piece, ...]]:
    """Return the shape of a parameter on a rank, and its pieces."""
    local = parameter.row.cut.at(place)
    return local.shape, tuple(
        Piece(tensors[tensor].file, tensor, *_block(parameter, rows, columns), at=at)
        for tensor, rows, columns, at in _blocks(parameter, local)
    )


def _blocks(
    parameter: WholeParameter, local: TensorShard
) -> Iterator[tuple[str, Span, Span | None, Span]]:
    """Yield tensor, rows and columns of it, and row and column of the shard where these begin."""
    if local.cut.dimension is None:  # all of one tensor, whose shape may differ in the file
        (source,) = parameter.sources
        yield source.tensor, (source.start, source.stop), None, (0, 0)
        return
    for rectangle in local.rectangles:
        start, stop = rectangle.whole[0], rectangle.whole[0] + rectangle.shape[0]
        columns: Span | None = None
        if local.cut.dimension == 1:
            columns = rectangle.whole[1], rectangle.whole[1] + rectangle.shape[1]
        row = 0
        for source in parameter.sources:
            length = source.stop - source.start
            first, last = max(start, row), min(stop, row + length)
            if first < last:
                rows = first - row + source.start, last - row + source.start
                at, column = rectangle.local[0] + first - start, 0
                for span in source.columns or (columns,):
                    yield source.tensor, rows, span, (at, column)
                    column += 0 if span is None else span[1] - span[0]
            row += length


def _block(
    parameter: WholeParameter, rows: Span, columns: Span | None
) -> tuple[Span, Span | None, bool]:
    """Return rows and columns of a block as they are counted in the file, and if it is transposed.

    Columns are None where they are all of the tensor's.
    """
    if not parameter.transposed:
        return rows, columns, False
    length = sum(source.stop - source.start for source in parameter.sources)
    across = None if rows == (0, length) and len(parameter.sources) == 1 else rows
    return columns or (0, parameter.row.cut.whole[1]), across, True
