"""The layers and parameters of a module on one rank of a pipeline stage, as Megatron has them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from mimokit.architecture.modules import DecoderHead, EncoderBranch, LanguageModel
from mimokit.architecture.parallel_sizes import Numbers, ParallelSizes
from mimokit.architecture.tensor_cut import Span
from mimokit.architecture.transformer import LayerParameters, Transformer, dense_layer, expert_layer


@dataclass(frozen=True)
class StageLayers:
    """Layers on one stage."""

    dense: Numbers
    expert: Numbers

    @property
    def total(self) -> Numbers:
        """All layers of the stage."""
        return self.dense + self.expert

    def first(self, count: int) -> StageLayers:
        """Return at most `count` of the layers; dense ones of a mixture come first."""
        dense = np.minimum(count, self.dense)
        return StageLayers(dense, np.minimum(count - dense, self.expert))


def stage_layers(
    layers: int, dense: int, sizes: ParallelSizes, stage: Numbers, extra: int = 0
) -> StageLayers:
    """Return the layers of a stage, by `ModuleSizes.layers_per_chunk`.

    Dense layers of a mixture come first; with several chunks per stage they are in the first ones.
    """
    per_chunk, ends = sizes.layers_per_chunk(layers, extra)
    first, last = np.equal(stage, 0), np.equal(stage, sizes.pipeline - 1)
    full = per_chunk * sizes.virtual
    short = full - ends * (first * 1.0 + last * (1.0 + extra))
    total = np.where(np.equal(sizes.pipeline, 1), layers, np.clip(short, 0, layers))
    if dense >= layers:
        return StageLayers(total, 0 * total)
    # The embedding before the first stage is what its chunk is shorter by.
    before = stage * per_chunk - ends * (1 - first)
    of_first_chunk = np.minimum(total, per_chunk - ends * first)
    here = np.clip(dense - before, 0, of_first_chunk)
    return StageLayers(here, total - here)


def stage_spans(layers: int, sizes: ParallelSizes, extra: int = 0) -> tuple[Span, ...]:
    """Return which layers every stage has; it has one chunk of them."""
    stages = range(int(sizes.pipeline))
    numbers = [int(stage_layers(layers, layers, sizes, stage, extra).total) for stage in stages]
    return tuple(pairwise(accumulate(numbers, initial=0)))


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


Module = LanguageModel | EncoderBranch | DecoderHead


def net_of(module: Module) -> Transformer:
    """Return the layers of a module."""
    return module.encoder.net if isinstance(module, EncoderBranch) else module.net


def further_layers(module: Module) -> int:
    """Return the layers of a module that predict tokens further on, on its last stage."""
    return module.next_token_layers if isinstance(module, LanguageModel) else 0


def output_rows(module: LanguageModel | DecoderHead, sizes: ParallelSizes) -> Numbers:
    """Return the rows of the output layer on a rank; those of a decoder are not padded."""
    if isinstance(module, DecoderHead):
        return module.vocab / sizes.tensor
    return module.padded_vocab(sizes.tensor) / sizes.tensor


def layers_of(module: Module, sizes: ParallelSizes, stage: Numbers) -> StageLayers:
    """Return the layers of a module on one of its stages."""
    net, extra = net_of(module), further_layers(module)
    return stage_layers(net.layers, net.dense_layers, sizes, stage, extra)


def rank_parameters(module: Module, sizes: ParallelSizes, stage: Numbers) -> RankParameters:
    """Return the parameters on one rank of a stage."""
    net = net_of(module)
    layers = layers_of(module, sizes, stage)
    parameters = _times(dense_layer(net), layers.dense, sizes)
    if net.moe is not None:
        experts = _times(expert_layer(net, net.moe), layers.expert, sizes)
        parameters = RankParameters(parameters.ordinary + experts.ordinary, experts.expert)
    ends = _ends(module, sizes, stage)
    matrices = 0 if net.moe is not None else dense_layer(net).sharded / sizes.tensor * layers.dense
    return RankParameters(
        parameters.ordinary + ends.ordinary, parameters.expert + ends.expert, matrices
    )


def _times(layer: LayerParameters, layers: Numbers, sizes: ParallelSizes) -> RankParameters:
    ordinary = layer.sharded / sizes.tensor + layer.replicated
    parts = sizes.expert * sizes.expert_tensor
    return RankParameters(ordinary * layers, layer.expert / parts * layers)


def _ends(module: Module, sizes: ParallelSizes, stage: Numbers) -> RankParameters:
    first = np.equal(stage, 0)
    last = np.equal(stage, sizes.pipeline - 1)
    if isinstance(module, LanguageModel):
        return _language_ends(module, sizes, first, last)
    if isinstance(module, DecoderHead):
        behind = module.net.norm_parameters + output_rows(module, sizes) * module.net.hidden
        return RankParameters(first * module.parameters_before + last * behind)
    encoder = module.encoder
    after = encoder.parameters_after_layers
    in_front = encoder.parameters_outside_layers - after
    projector = projector_parameters(module, sizes, stage)
    return RankParameters(first * in_front + last * after + projector)


def projector_parameters(branch: EncoderBranch, sizes: ParallelSizes, stage: Numbers) -> Numbers:
    """Return the parameters of projectors on one rank of a stage; they lie behind the last."""
    projectors = branch.projectors
    sharded = sum(projector.sharded * (1 + projector.copies) for projector in projectors)
    whole = sum(projector.parameters for projector in projectors) - sharded
    return np.equal(stage, sizes.pipeline - 1) * (whole + sharded / sizes.tensor)


def _language_ends(
    model: LanguageModel, sizes: ParallelSizes, first: Numbers, last: Numbers
) -> RankParameters:
    # Tied embeddings lie on both ends of a pipeline, and once where there is a single stage; so
    # does the embedding that layers of multi-token prediction read.
    net = model.net
    table = model.padded_vocab(sizes.tensor) * net.hidden / sizes.tensor
    once = np.logical_and(model.tied, np.equal(sizes.pipeline, 1))
    ordinary = first * (table + model.positions * net.hidden)
    ordinary = ordinary + last * (np.where(once, 0, table) + net.norm_parameters)
    if not model.next_token_layers:
        return RankParameters(ordinary)
    layer = dense_layer(net) if net.moe is None else expert_layer(net, net.moe)
    extra = _times(layer, model.next_token_layers, sizes)
    joining = model.next_token_layers * (2 * net.hidden**2 / sizes.tensor + 3 * net.norm_parameters)
    copied = np.where(np.logical_or(model.tied, np.equal(sizes.pipeline, 1)), 0, table)
    ordinary = ordinary + last * (extra.ordinary + joining + copied)
    return RankParameters(ordinary, last * extra.expert)
