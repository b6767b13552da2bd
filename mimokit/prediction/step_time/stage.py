"""Seconds of one module's stages, of its gradient reduction and its optimizer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mimokit.architecture.modules import EncoderBranch, LanguageModel, VisionEncoder
from mimokit.architecture.parallel_sizes import (
    RECOMPUTE_FULL,
    RECOMPUTE_SELECTIVE,
    Numbers,
    ParallelSizes,
)
from mimokit.architecture.parameters_on_rank import (
    Module,
    held_parameters,
    layers_of,
    net_of,
    padded_vocab,
)
from mimokit.architecture.transformer import Transformer
from mimokit.prediction.step_time.breakdown import Parts
from mimokit.prediction.step_time.collectives import gather, send
from mimokit.prediction.step_time.layer import LayerTime, layer_time
from mimokit.prediction.step_time.system import HALF, Setting

OPTIMIZER_BYTES = 34
"""Adam's bytes through memory per parameter: fp32 gradient read twice (norm, step), master weight
and both moments read and written, bf16 weight written."""
CROSS_ENTROPY_BYTES = 16
"""Bytes through memory per logit: bf16 written, fp32 made, its maximum, sum and softmax."""


@dataclass(frozen=True)
class Work:
    """What a module is given per micro-batch.

    Attributes:
        seq: tokens of one sequence (an encoder: patches of one image or window of audio).
        sequences: per micro-batch on one replica.
        trained: weights take gradients.
        passes_gradient: the gradient of the input is computed: for something trained before it.
    """

    seq: Numbers
    sequences: Numbers
    trained: bool = True
    passes_gradient: bool = True


@dataclass(frozen=True)
class StageTime:
    """Forward and backward of one stage for one micro-batch.

    Attributes:
        forward: seconds by part.
        backward: seconds by part, recomputation included.
    """

    forward: Parts
    backward: Parts

    @property
    def total(self) -> Numbers:
        """Forward and backward."""
        return self.forward.total + self.backward.total


def stage_time(
    module: Module, sizes: ParallelSizes, work: Work, setting: Setting, stage: Numbers
) -> StageTime:
    """Return the time of a stage for one micro-batch."""
    net = net_of(module)
    tokens = work.sequences * work.seq / sizes.context
    layers = layers_of(module, sizes, stage)
    forward, backward = _layers(net, sizes, tokens, work, setting, layers.dense, layers.expert)
    ends = _ends(module, sizes, tokens, setting, stage)
    factor = _backward_factor(work)
    begin = Parts(host=setting.software.host_micro_batch)
    return StageTime(begin + forward + ends, backward + ends.times(factor))


def _layers(
    net: Transformer,
    sizes: ParallelSizes,
    tokens: Numbers,
    work: Work,
    setting: Setting,
    dense: Numbers,
    expert: Numbers,
) -> tuple[Parts, Parts]:
    visible = visible_tokens(net, work.seq)
    forward, backward = Parts(), Parts()
    for moe, count in ((None, dense), (net.moe, expert)):
        if moe is None and count is expert:
            continue
        one = layer_time(net, moe, sizes, tokens, visible, setting)
        forward = forward + one.forward.times(count)
        backward = backward + _with_recompute(one, sizes, work).times(count)
    return forward, backward


def _with_recompute(layer: LayerTime, sizes: ParallelSizes, work: Work) -> Parts:
    """Return a layer's backward, by what is trained, and what recomputation adds.

    Weights that take no gradient leave out one of the two products; a module before which nothing
    is trained, and that is not trained itself, has no backward at all.
    """
    if not work.trained and not work.passes_gradient:
        return layer.backward.times(0.0)
    full = np.equal(sizes.recompute, RECOMPUTE_FULL) * 1.0
    selective = np.equal(sizes.recompute, RECOMPUTE_SELECTIVE) * 1.0
    backward = layer.backward
    if work.trained:
        backward = backward + Parts(memory=layer.gradients)
    else:
        backward = Parts(**{**vars(backward), "matrix": backward.matrix / 2})
    return (
        backward + layer.forward.times(full) + Parts(attention=layer.forward.attention * selective)
    )


def _backward_factor(work: Work) -> float:
    if work.trained:
        return 2.0
    return 1.0 if work.passes_gradient else 0.0


def visible_tokens(net: Transformer, seq: Numbers) -> Numbers:
    """Return the tokens that a token attends to, averaged over tokens and layers."""
    share = 0.5 if net.causal else 1.0
    if not net.window:
        return share * seq
    full = net.full_attention_layers / net.layers
    return full * share * seq + (1 - full) * np.minimum(net.window, share * seq)


def _ends(
    module: Module, sizes: ParallelSizes, tokens: Numbers, setting: Setting, stage: Numbers
) -> Parts:
    """Return the forward time of what the first and the last stage do beside layers."""
    last = np.equal(stage, sizes.pipeline - 1)
    if isinstance(module, LanguageModel):
        net, predictions = module.net, 1 + module.next_token_layers
        rows = padded_vocab(module, sizes.tensor) / sizes.tensor
        logits = setting.matrix_seconds(2 * tokens * net.hidden * rows, setting.half)
        entropy = setting.memory_seconds(CROSS_ENTROPY_BYTES * tokens * rows) / 2
        ends = Parts(matrix=logits, memory=entropy).times(predictions * last)
        if module.next_token_layers:
            visible = visible_tokens(net, tokens * sizes.context / sizes.micro_batch)
            extra = layer_time(net, net.moe, sizes, tokens, visible, setting).forward
            ends = ends + extra.times(module.next_token_layers * last)
        return ends
    return _projector(module, sizes, tokens, setting).times(last) + _patches(
        module, sizes, tokens, setting
    ).times(np.equal(stage, 0))


def _projector(
    branch: EncoderBranch, sizes: ParallelSizes, tokens: Numbers, setting: Setting
) -> Parts:
    merge = branch.encoder.merge**2 if isinstance(branch.encoder, VisionEncoder) else 1
    matrices = branch.projector.matrices * (1 + branch.projector.copies)
    return Parts(matrix=setting.matrix_seconds(2 * tokens / merge * matrices / sizes.tensor))


def _patches(
    branch: EncoderBranch, sizes: ParallelSizes, tokens: Numbers, setting: Setting
) -> Parts:
    """Return the time of patch embedding or convolutions, which every tensor rank does whole."""
    encoder = branch.encoder
    outside = encoder.parameters_outside_layers - encoder.positions * encoder.net.hidden
    return Parts(matrix=setting.matrix_seconds(2 * tokens * outside, setting.half))


def boundary_time(module: Module, sizes: ParallelSizes, work: Work, setting: Setting) -> Numbers:
    """Return the seconds of sending one micro-batch's activations to the next stage.

    Each tensor-parallel rank sends its share, also where activations are not cut: they are put
    together on the other side (arXiv 2104.04473, sec. 4.1).
    """
    tokens = work.sequences * work.seq / sizes.context
    volume = HALF * net_of(module).hidden * tokens / sizes.tensor
    distance = sizes.tensor * sizes.context * sizes.data
    return np.where(np.greater(sizes.pipeline, 1), send(setting.hardware, volume, distance), 0.0)


@dataclass(frozen=True)
class UpdateTime:
    """What a step does once.

    Attributes:
        reduce: seconds of reducing the gradients of a stage.
        gather: seconds of gathering its updated weights.
        optimizer: seconds of the optimizer.
    """

    reduce: Numbers
    gather: Numbers
    optimizer: Numbers


def update_time(
    module: Module, sizes: ParallelSizes, setting: Setting, stage: Numbers
) -> UpdateTime:
    """Return the time of what a stage does once per step, each on its own."""
    held = held_parameters(module, sizes, stage)
    hardware, cut = (
        setting.hardware,
        np.logical_or(sizes.distributed_optimizer, sizes.fully_sharded),
    )
    reduce: Numbers = 0.0
    collect: Numbers = 0.0
    owned: Numbers = 0.0
    for count, ranks, stride in (
        (held.ordinary, sizes.replicas, sizes.tensor),
        (held.expert, sizes.expert_replicas, sizes.expert),
    ):
        passes = np.where(cut, 1.0, 2.0)  # reduce-scatter, or all-reduce
        volume = setting.software.gradient_bytes * count
        reduce = reduce + passes * gather(hardware, volume, ranks, stride)
        collect = collect + np.where(cut, gather(hardware, HALF * count, ranks, stride), 0.0)
        owned = owned + count / np.where(cut, np.maximum(1, ranks / sizes.instances), 1)
    return UpdateTime(reduce, collect, setting.memory_seconds(OPTIMIZER_BYTES * owned))
