"""The parameters of a module on a rank, as Megatron has them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mimokit.architecture.layers_on_stage import layers_of
from mimokit.architecture.modules import DecoderHead, LanguageModel, Module
from mimokit.architecture.tensor_rows import End, Parameters, parameters_of
from mimokit.architecture.transformer import layer_parameters
from mimokit.config.sizes import Numbers, ParallelSizes


@dataclass(frozen=True)
class RankParameters:
    """The parameters of a module on one rank.

    Attributes:
        matrices: of `ordinary`, those in the layers of a dense model that tensor parallelism
            shards; they may be stored in 8 bits.
    """

    ordinary: Numbers
    expert: Numbers = 0
    matrices: Numbers = 0

    @property
    def total(self) -> Numbers:
        """Ordinary and expert parameters."""
        return self.ordinary + self.expert


def output_rows(module: LanguageModel | DecoderHead, sizes: ParallelSizes) -> Numbers:
    """Return the rows of the output layer on a rank; those of a decoder are not padded."""
    if isinstance(module, DecoderHead):
        return module.vocab / sizes.tensor
    return module.padded_vocab(sizes.tensor) / sizes.tensor


def rank_parameters(module: Module, sizes: ParallelSizes, stage: Numbers) -> RankParameters:
    """Return the parameters on one rank of a stage."""
    net, layers = module.net, layers_of(module, sizes, stage)
    last = np.equal(stage, sizes.pipeline - 1)
    ends = _end_parameters(module)
    parts: list[tuple[Parameters, Numbers]] = [
        (layer_parameters(net, None), layers.dense),
        (ends[End.FIRST], np.equal(stage, 0)),
        (ends[End.LAST], last),
        (ends[End.LAST_COPY], last * np.not_equal(sizes.pipeline, 1)),
    ]
    matrices: Numbers = layer_parameters(net, None).sharded / sizes.tensor * layers.dense
    if net.moe is not None:
        parts.append((layer_parameters(net, net.moe), layers.expert))
        matrices = 0
    experts = sizes.expert * sizes.expert_tensor
    return RankParameters(
        sum((part.ordinary(sizes) * count for part, count in parts), 0),
        sum((part.expert / experts * count for part, count in parts if part.expert), 0),
        matrices,
    )


@lru_cache(maxsize=256)
def _end_parameters(module: Module) -> dict[End, Parameters]:
    top_k = 0 if module.net.moe is None else module.net.moe.top_k
    rows = [*module.ends(experts=1)]
    return {end: parameters_of((row for row in rows if row.place is end), top_k) for end in End}
