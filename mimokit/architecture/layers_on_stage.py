"""Layers and tensors of a module on a stage, as Megatron has them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from mimokit.architecture.modules import Module
from mimokit.architecture.tensor_cut import Span
from mimokit.architecture.tensor_rows import ModuleTensor
from mimokit.architecture.tensors import module_tensors
from mimokit.config.sizes import Numbers, ParallelSizes


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
    """Return the layers of a stage, by `ParallelSizes.layers_per_chunk`.

    Dense layers of a mixture come first; with several chunks per stage they are in the first ones.
    """
    if np.any(np.greater(sizes.logits_as_layers, 0)):
        dealt = layers_before(layers, sizes, stage + 1) - layers_before(layers, sizes, stage)
        ahead = np.clip(dense - layers_before(layers, sizes, stage), 0, dealt)
        return StageLayers(ahead, dealt - ahead)
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


def layers_before(layers: int, sizes: ParallelSizes, stage: Numbers) -> Numbers:
    """Return the layers in front of a stage, where layers are dealt by their products.

    A layer goes to the first stage before whose end it begins, counted in shares of all products,
    logits included; no stage is passed over. The logits are on the last stage.
    """
    reached = np.ceil((layers + sizes.logits_as_layers) * stage / sizes.pipeline - ROUNDING)
    reached = np.maximum(reached, stage)
    return np.where(np.greater_equal(stage, sizes.pipeline), layers, np.minimum(reached, layers))


ROUNDING = 1e-9
"""What a share of whole layers may differ from them by."""


def stage_spans(layers: int, sizes: ParallelSizes, extra: int = 0) -> tuple[Span, ...]:
    """Return which layers every stage has; it has one chunk of them."""
    stages = range(int(sizes.pipeline))
    numbers = [int(stage_layers(layers, layers, sizes, stage, extra).total) for stage in stages]
    return tuple(pairwise(accumulate(numbers, initial=0)))


def layers_of(module: Module, sizes: ParallelSizes, stage: Numbers) -> StageLayers:
    """Return the layers of a module on one of its stages."""
    net, extra = module.net, module.next_token_layers
    return stage_layers(net.layers, net.dense_layers, sizes, stage, extra)


def stage_tensors(module: Module, sizes: ParallelSizes, stage: int) -> tuple[ModuleTensor, ...]:
    """Return the tensors of a module on the ranks of a stage."""
    layers = stage_spans(module.net.layers, sizes, module.next_token_layers)
    return tuple(row for row in module_tensors(module) if row.is_on(stage, layers))
