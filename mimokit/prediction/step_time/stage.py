"""Seconds of one module's stages, its gradient reduction and its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mimokit.architecture.layer_work.products import visible_tokens
from mimokit.architecture.modules import EncoderBranch, LanguageModel, VisionEncoder
from mimokit.architecture.parallel_sizes import (
    RECOMPUTE_FULL,
    RECOMPUTE_SELECTIVE,
    Numbers,
    ParallelSizes,
)
from mimokit.architecture.parameters_on_rank import Module, layers_of, net_of, rank_parameters
from mimokit.prediction.step_time.breakdown import LayerTime, StageTime, TimeBreakdown
from mimokit.prediction.step_time.collectives import gather, send
from mimokit.prediction.step_time.layer import layer_time
from mimokit.prediction.step_time.system import HALF, System

OPTIMIZER_BYTES = 34
"""Bytes that Adam moves per parameter: fp32 gradient read twice (norm, step), master weight and
both moments read and written, bf16 weight written; fp32 training has no bf16 weight."""
CROSS_ENTROPY_BYTES = 16
"""Bytes moved per logit: bf16 written, cast to fp32, its maximum, sum and softmax."""


@dataclass(frozen=True)
class ModuleInput:
    """The input of a module per micro-batch.

    Attributes:
        seq: tokens per sequence. For an encoder, patches of one image or window of audio.
        passes_gradient: the gradient of the input is computed, for a trained module before it.
        weights_apart: gradients of weights are computed apart from those of inputs, and later.
    """

    seq: Numbers
    sequences: Numbers
    trained: bool = True
    passes_gradient: bool = True
    weights_apart: bool = False


LayerTimes = Mapping[bool, LayerTime]
"""Whether a layer has experts -> its seconds; of the kinds that a module has."""


def layer_times(
    module: Module, sizes: ParallelSizes, inputs: ModuleInput, system: System
) -> LayerTimes:
    """Return the seconds of a module's kinds of layers, which no stage changes."""
    net = net_of(module)
    tokens = inputs.sequences * inputs.seq / sizes.context
    visible = visible_tokens(net, inputs.seq)
    kinds = [moe for moe in (None, net.moe) if moe is not None or net.dense_layers]
    return {
        moe is not None: layer_time(
            net, moe, sizes, tokens, visible, system, trained=inputs.trained
        )
        for moe in kinds
    }


def stage_time(
    module: Module,
    sizes: ParallelSizes,
    inputs: ModuleInput,
    system: System,
    stage: Numbers,
    times: LayerTimes,
) -> StageTime:
    """Return the time of a stage for one micro-batch."""
    tokens = inputs.sequences * inputs.seq / sizes.context
    layers = layers_of(module, sizes, stage)
    forward = TimeBreakdown(host=system.software.host_micro_batch)
    backward = TimeBreakdown()
    apart: Numbers = 0.0
    whole = layers.first(system.recipe.recompute_layers)
    for has_experts, count, again in (
        (False, layers.dense, whole.dense), (True, layers.expert, whole.expert),
    ):  # fmt: skip
        if has_experts in times:
            layer = times[has_experts]
            forward = forward + layer.forward.times(count)
            backward = backward + _with_recompute(layer, sizes, inputs, count, again)
            apart = apart + layer.weights * count
    ends = _ends(module, sizes, tokens, system, stage, times)
    weights = apart + ends.matrix if inputs.weights_apart and inputs.trained else 0.0
    return StageTime(forward + ends, backward + ends.times(_backward_factor(inputs)), weights)


def _with_recompute(
    layer: LayerTime, sizes: ParallelSizes, inputs: ModuleInput, count: Numbers, again: Numbers
) -> TimeBreakdown:
    """Return the seconds of the backward pass of `count` layers, recomputation included.

    A frozen module with no trained module before it has no backward pass.

    Args:
        again: of them, those that a recipe recomputes whole.
    """
    if not inputs.trained and not inputs.passes_gradient:
        return layer.backward.times(0.0)
    full = np.equal(sizes.recompute, RECOMPUTE_FULL)
    selective = np.equal(sizes.recompute, RECOMPUTE_SELECTIVE) * 1.0
    again = np.where(full, count, again)
    scores = TimeBreakdown(attention=layer.forward.attention * selective * count)
    return layer.backward.times(count) + layer.forward.times(again) + scores


def _backward_factor(inputs: ModuleInput) -> float:
    if inputs.trained:
        return 2.0
    return 1.0 if inputs.passes_gradient else 0.0


def _ends(
    module: Module,
    sizes: ParallelSizes,
    tokens: Numbers,
    system: System,
    stage: Numbers,
    times: LayerTimes,
) -> TimeBreakdown:
    """Return the forward seconds of the first and the last stage outside their layers."""
    last = np.equal(stage, sizes.pipeline - 1)
    if isinstance(module, LanguageModel):
        net, predictions = module.net, 1 + module.next_token_layers
        rows = module.padded_vocab(sizes.tensor) / sizes.tensor
        logits = system.matrix_seconds(2 * tokens * net.hidden * rows, system.half)
        entropy = system.memory_seconds(CROSS_ENTROPY_BYTES * tokens * rows) / 2
        ends = TimeBreakdown(matrix=logits, memory=entropy).times(predictions * last)
        if module.next_token_layers:
            visible = visible_tokens(net, tokens * sizes.context / sizes.micro_batch)
            extra = layer_time(net, net.moe, sizes, tokens, visible, system).forward
            ends = ends + extra.times(module.next_token_layers * last)
        return ends
    return _projector(module, sizes, tokens, system).times(last) + _patches(
        module, sizes, tokens, system
    ).times(np.equal(stage, 0))


def _projector(
    branch: EncoderBranch, sizes: ParallelSizes, tokens: Numbers, system: System
) -> TimeBreakdown:
    merge = branch.encoder.merge**2 if isinstance(branch.encoder, VisionEncoder) else 1
    matrices = branch.projector.matrices * (1 + branch.projector.copies)
    return TimeBreakdown(matrix=system.matrix_seconds(2 * tokens / merge * matrices / sizes.tensor))


def _patches(
    branch: EncoderBranch, sizes: ParallelSizes, tokens: Numbers, system: System
) -> TimeBreakdown:
    """Return the seconds of patch embedding or convolutions, which are not sharded."""
    encoder = branch.encoder
    outside = encoder.parameters_outside_layers - encoder.positions * encoder.net.hidden
    return TimeBreakdown(matrix=system.matrix_seconds(2 * tokens * outside, system.half))


def boundary_time(
    module: Module, sizes: ParallelSizes, inputs: ModuleInput, system: System
) -> Numbers:
    """Return the seconds of sending one micro-batch's activations to the next stage.

    Each tensor-parallel rank sends its share, even if activations are not sharded. The receiving
    ranks gather them (arXiv 2104.04473, sec. 4.1).
    """
    tokens = inputs.sequences * inputs.seq / sizes.context
    volume = system.number_bytes * net_of(module).hidden * tokens / sizes.tensor
    distance = sizes.tensor * sizes.context * sizes.data
    return np.where(np.greater(sizes.pipeline, 1), send(system.connected, volume, distance), 0.0)


@dataclass(frozen=True)
class UpdateTime:
    """Seconds of what a step does once, after its last micro-batch."""

    reduce: Numbers
    gather: Numbers
    optimizer: Numbers


def update_time(
    module: Module, sizes: ParallelSizes, system: System, stage: Numbers, *, trained: bool = True
) -> UpdateTime:
    """Return the seconds of what a stage does once per step, without overlap.

    Args:
        trained: False: there are no gradients and no optimizer; only weights that are sharded in
            full are gathered.
    """
    parameters = rank_parameters(module, sizes, stage)
    hardware = system.connected
    cut = np.logical_or(sizes.distributed_optimizer, sizes.fully_sharded)
    reduce: Numbers = 0.0
    collect: Numbers = 0.0
    owned: Numbers = 0.0
    for count, ranks, stride in (
        (parameters.ordinary, sizes.replicas, sizes.tensor),
        (parameters.expert, sizes.expert_replicas, sizes.expert),
    ):
        passes = np.where(cut, 1.0, 2.0)  # reduce-scatter, or all-reduce
        volume = system.gradient_bytes * count
        reduce = reduce + passes * gather(hardware, volume, ranks, stride)
        collected = gather(hardware, system.number_bytes * count, ranks, stride)
        gathers = cut if trained else sizes.fully_sharded
        collect = collect + np.where(gathers, collected, 0.0)
        owned = owned + count / np.where(cut, np.maximum(1, ranks / sizes.instances), 1)
    if not trained:
        return UpdateTime(0.0 * reduce, collect, 0.0 * owned)
    moved = OPTIMIZER_BYTES if system.number_bytes == HALF else OPTIMIZER_BYTES - HALF
    return UpdateTime(reduce, collect, system.memory_seconds(moved * owned))
