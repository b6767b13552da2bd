"""Seconds of one module's stages, its gradient reduction and its optimizer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mimokit.architecture.layer_work.products import visible_tokens
from mimokit.architecture.layers_on_stage import layers_of
from mimokit.architecture.modules import DecoderHead, EncoderBranch, LanguageModel, Module
from mimokit.architecture.rank_parameters import output_rows, rank_parameters
from mimokit.architecture.transformer import layer_parameters
from mimokit.config.sizes import (
    RECOMPUTE_FULL,
    RECOMPUTE_SELECTIVE,
    Numbers,
    ParallelSizes,
)
from mimokit.prediction.remembered import remembered
from mimokit.prediction.step_time.breakdown import LayerTime, StageTime, TimeBreakdown
from mimokit.prediction.step_time.collectives import TimedMessage, gathered, sent
from mimokit.prediction.step_time.layer import host_term, layer_terms, layer_time
from mimokit.prediction.step_time.layer_input import LayerInput
from mimokit.prediction.step_time.system import HALF, System
from mimokit.prediction.step_time.terms import Term, TimePiece, added, breakdown

OPTIMIZER_BYTES = 34
"""Bytes that Adam moves per parameter: fp32 gradient read twice (norm, step), master weight and
both moments read and written, bf16 weight written; fp32 training has no bf16 weight."""


def dealt(
    module: LanguageModel | DecoderHead, sizes: ParallelSizes, system: System
) -> ParallelSizes:
    """Return sizes that say how a training stack deals layers to stages."""
    if not system.software.deals_layers:
        return sizes
    rows = output_rows(module, sizes) * sizes.tensor
    return replace(
        sizes,
        logits_as_layers=rows * module.net.hidden / layer_parameters(module.net, None).sharded,
    )


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
    net = module.net
    tokens = inputs.sequences * inputs.seq / sizes.context
    visible = visible_tokens(net, inputs.seq)
    kinds = {moe for moe in (None, net.moe) if moe is not None or net.dense_layers}
    layers = [LayerInput(net, moe, sizes, tokens, visible, system) for moe in kinds]
    return {layer.moe is not None: layer_time(layer, trained=inputs.trained) for layer in layers}


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
    forward = TimeBreakdown()
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
    start = breakdown(start_terms(system))
    ends = breakdown(end_terms(module, sizes, tokens, system, stage))
    weights = apart + ends.matrix if inputs.weights_apart and inputs.trained else 0.0
    behind = ends.times(end_factor(inputs))
    if inputs.trained:
        behind = behind + breakdown(table_terms(module, sizes, system, stage))
    return StageTime(forward + start + ends, backward + behind, weights)


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


def table_terms(
    module: Module, sizes: ParallelSizes, system: System, stage: Numbers
) -> tuple[Term, ...]:
    """Return what the backward pass does with the gradient of the embedding's table.

    It is dense: zeros are written, rows are added, and all of it is added to the main gradient.
    """
    if not isinstance(module, LanguageModel):
        return ()
    each = 2 * system.number_bytes + 2 * system.main_gradient_bytes
    rows = module.padded_vocab(sizes.tensor) / sizes.tensor
    moved = system.moved(np.equal(stage, 0) * each * rows * module.net.hidden)
    return (added("memory", "gradient of the embedding", (moved,), bytes=moved.amount),)


def end_factor(inputs: ModuleInput) -> float:
    """Return the backward seconds of what is outside layers, over those of its forward pass."""
    if inputs.trained:
        return 2.0
    return 1.0 if inputs.passes_gradient else 0.0


def start_terms(system: System) -> tuple[Term, ...]:
    """Return what a stage does at the start of a micro-batch."""
    each = system.micro_batch_start
    if not each:
        return ()
    piece = TimePiece(1.0, each, "micro-batches read and sent to ranks by the host")
    return (added("host", "start of a micro-batch", (piece,)),)


def end_terms(
    module: Module, sizes: ParallelSizes, tokens: Numbers, system: System, stage: Numbers
) -> tuple[Term, ...]:
    """Return the forward work of the first and the last stage outside their layers."""
    last = np.equal(stage, sizes.pipeline - 1)
    if isinstance(module, LanguageModel):
        terms = _logits(module, sizes, tokens, system)
        if module.next_token_layers:
            terms += _further(module, sizes, tokens, system)
        return tuple(term.times(last) for term in terms)
    first = np.equal(stage, 0)
    if isinstance(module, DecoderHead):
        written = tuple(term.times(last) for term in _logits(module, sizes, tokens, system))
        return (_projection(module, tokens, system).times(first), *written)
    behind = tuple(term.times(last) for term in _behind_layers(module, sizes, tokens, system))
    return (*behind, _before_layers(module, tokens, system).times(first))


def _logits(
    module: LanguageModel | DecoderHead, sizes: ParallelSizes, tokens: Numbers, system: System
) -> tuple[Term, ...]:
    net, predictions = module.net, 1 + module.next_token_layers
    rows = output_rows(module, sizes)
    operations = 2 * tokens * net.hidden * rows * predictions
    moved = system.software.loss_bytes * tokens * rows * predictions
    return (
        added(
            "matrix", "logits", (system.operations(operations, system.half),),
            operations=operations, launches=1.0 * predictions,
        ),
        added("memory", "loss of the logits", (system.moved(moved),), bytes=moved),
    )  # fmt: skip


def _projection(module: DecoderHead, tokens: Numbers, system: System) -> Term:
    """Return the projection of the language model's rows, which is not sharded."""
    operations = 2 * tokens * module.inputs * module.net.hidden
    work = (system.operations(operations),)
    return added("matrix", "projection", work, operations=operations, launches=1.0)


def _further(
    module: LanguageModel, sizes: ParallelSizes, tokens: Numbers, system: System
) -> tuple[Term, ...]:
    net = module.net
    visible = visible_tokens(net, tokens * sizes.context / sizes.micro_batch)
    terms = layer_terms(LayerInput(net, net.moe, sizes, tokens, visible, system))
    done = (*terms.forward, host_term(terms.forward, terms, system))
    return tuple(
        replace(term, name=f"layer of further tokens: {term.name}").times(module.next_token_layers)
        for term in done
    )


def _behind_layers(
    branch: EncoderBranch, sizes: ParallelSizes, tokens: Numbers, system: System
) -> tuple[Term, ...]:
    """Return the projector, and before it what makes one row of an item, which is not sharded."""
    rows = tokens / branch.positions_of_a_row
    operations = 2 * rows * branch.projections / sizes.tensor
    work = (system.operations(operations),)
    projector = added("matrix", "projector", work, operations=operations, launches=1.0)
    head = branch.encoder.row_head
    if head is None:
        return (projector,)
    each, once = head.work
    operations = 2 * (tokens * each + rows * once)
    work = (system.operations(operations, system.half),)
    row = added("matrix", head.name, work, operations=operations, launches=head.products)
    return row, projector


def _before_layers(branch: EncoderBranch, tokens: Numbers, system: System) -> Term:
    """Return patch embedding, convolutions or an adapter's matrix in front: ranks share none."""
    operations = 2 * tokens * branch.encoder.work_before_layers
    work = (system.operations(operations, system.half),)
    return added("matrix", "patches or convolutions", work, operations=operations, launches=1.0)


@remembered
def boundary_time(
    module: Module, sizes: ParallelSizes, inputs: ModuleInput, system: System
) -> Numbers:
    """Return the seconds of sending one micro-batch's activations to the next stage.

    Each tensor-parallel rank sends its share, even if activations are not sharded. The receiving
    ranks gather them (arXiv 2104.04473, sec. 4.1).
    """
    return boundary_message(module, sizes, inputs, system).seconds


def boundary_message(
    module: Module, sizes: ParallelSizes, inputs: ModuleInput, system: System
) -> TimedMessage:
    """Return the send of one micro-batch's activations to the next stage."""
    tokens = inputs.sequences * inputs.seq / sizes.context
    volume = system.number_bytes * module.net.hidden * tokens / sizes.tensor
    distance = sizes.tensor * sizes.context * sizes.data
    message, several = sent(system.connected, volume, distance), np.greater(sizes.pipeline, 1)
    return replace(message, latency=message.latency * several, bytes=message.bytes * several)


@dataclass(frozen=True)
class UpdateTerms:
    """What a step does once, after its last micro-batch."""

    reduce: Term
    gather: Term
    optimizer: Term


@remembered
def update_terms(
    module: Module, sizes: ParallelSizes, system: System, stage: Numbers, *, trained: bool = True
) -> UpdateTerms:
    """Return what a stage does once per step, without overlap.

    Args:
        trained: False: there are no gradients and no optimizer; only weights that are sharded in
            full are gathered.
    """
    parameters = rank_parameters(module, sizes, stage)
    hardware = system.connected
    cut = np.logical_or(sizes.distributed_optimizer, sizes.fully_sharded)
    # Reduce-scatter, or all-reduce, and the gathering of what each rank has updated.
    passes = trained * np.where(cut, 1.0, 2.0)
    gathers = 1.0 * (cut if trained else sizes.fully_sharded)
    reduce: list[TimePiece] = []
    collect: list[TimePiece] = []
    owned: Numbers = 0.0
    for count, ranks, stride in (
        (parameters.ordinary, sizes.replicas, sizes.tensor),
        (parameters.expert, sizes.expert_replicas, sizes.expert),
    ):
        if hardware.cores is not None and not np.any(count):
            continue
        reduce += gathered(hardware, system.gradient_bytes * count, ranks, stride).pieces(passes)
        collect += gathered(hardware, system.number_bytes * count, ranks, stride).pieces(gathers)
        owned = owned + count / np.where(cut, np.maximum(1, ranks / sizes.instances), 1)
    each = OPTIMIZER_BYTES if system.number_bytes == HALF else OPTIMIZER_BYTES - HALF
    moved = system.moved(trained * each * owned)
    return UpdateTerms(
        _messages("reduction of gradients", reduce, sizes.replicas),
        _messages("gathering of weights", collect, sizes.replicas),
        added("update", "optimizer", (moved,), bytes=moved.amount),
    )


def _messages(name: str, pieces: list[TimePiece], ranks: Numbers) -> Term:
    """Return collectives over replicas; of each group the latency comes first, then the bytes."""
    launches: Numbers = sum((piece.amount for piece in pieces[::2]), 0.0)
    moved: Numbers = sum((piece.amount for piece in pieces[1::2]), 0.0)
    return added("update", name, pieces, bytes=moved, launches=launches, ranks=ranks)
