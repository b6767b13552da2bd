"""Decides which bytes of which file every rank holds, from headers and config alone."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping

from mimokit.architecture.huggingface.families import Family, family_of
from mimokit.architecture.huggingface.weight_tensors import WholeParameter
from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.architecture.parameters_on_rank import stage_spans
from mimokit.architecture.tensor_cut import ShardPlace, Span
from mimokit.config.errors import unknown_name
from mimokit.planning.ranks import DIMENSIONS, RankGrid
from mimokit.planning.weights.checks import check_sizes, check_tensors
from mimokit.planning.weights.directory import WeightDirectory, read_directory
from mimokit.planning.weights.headers import FLOATING, StoredTensor
from mimokit.planning.weights.pieces import shard
from mimokit.planning.weights.slices import joined_spans
from mimokit.planning.weights.types import (
    DTYPE_BYTES,
    PlannedParameter,
    RankWeights,
    WeightPlan,
)

Source = WeightDirectory | str | os.PathLike[str]


class WeightPlanner:
    """The checks of one checkpoint in one layout, and the plans of its ranks.

    Args:
        source: a directory, or what `read_directory` returned for it.
        dtype: torch's name of the dtype of loading; None: as in the files.
        family: the tensors to plan; None: all of the checkpoint.

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
        self.checkpoint = source if isinstance(source, WeightDirectory) else read_directory(source)
        if family is None:
            family = family_of(self.checkpoint.config, self.checkpoint.tensors)
        self.family = family
        if dtype is not None and dtype not in DTYPE_BYTES:
            raise unknown_name("Dtype", dtype, DTYPE_BYTES)
        check_tensors(self.checkpoint, self.family)
        check_sizes(self.family, tensor_parallel, pipeline_parallel)
        self.grid = RankGrid(DIMENSIONS, (tensor_parallel, 1, 1, pipeline_parallel))
        self._dtype = dtype
        stages = ParallelSizes(pipeline=pipeline_parallel)
        self._stages = stage_spans(self.family.stacked.layers, stages)
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

    def rank(self, number: int) -> RankWeights:
        """Return the plan of one rank."""
        place = self.grid.coordinates(number)
        rank, stage, size = place["tp"], place["pp"], self.grid.shape[0]
        net, language = self.family.stacked, self.family.language
        shards = ShardPlace(size, rank)
        parameters = {one.row.name: self._shard(one, shards) for one in self._by_stage[stage]}
        part = None if language is None else int(language.padded_vocab(size)) // size
        return RankWeights(
            tensor_rank=rank,
            pipeline_rank=stage,
            layers=self._stages[stage],
            query_heads=(rank * net.heads // size, (rank + 1) * net.heads // size),
            query_groups=(rank * net.kv_heads // size, -(-(rank + 1) * net.kv_heads // size)),
            vocab=None if part is None else (rank * part, (rank + 1) * part),
            bytes_touched=_touched(parameters, self.checkpoint.tensors),
            parameters=parameters,
        )

    def _shard(self, parameter: WholeParameter, place: ShardPlace) -> PlannedParameter:
        shape, pieces = shard(parameter, self.checkpoint.tensors, place)
        stored = self.checkpoint.tensors[parameter.sources[0].tensor].dtype
        dtype = self._dtype or FLOATING[stored]
        return PlannedParameter(shape, dtype, pieces, parameter.row.cut)


def plan_weights(
    source: Source,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    dtype: str | None = None,
) -> WeightPlan:
    """Return which bytes of which file every rank holds. No tensor is read.

    Args:
        source: a directory with config.json and safetensors files, or what `read_directory`
            returned for it.
        pipeline_parallel: stages. Of a LLaVA the language model is cut into stages; tower and
            projector lie on the first.
        dtype: torch's name of the dtype of loading; None: as in the files.

    Raises:
        ConfigError: a file is missing or damaged, config and files contradict each other, or the
            sizes cannot cut this model.
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
