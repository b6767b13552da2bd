"""Seconds of one module's stages, its gradient reduction and its optimizer."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from mimokit.architecture.layer_work.collectives import WAYS, Way
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
from mimokit.prediction.memo import remembered
from mimokit.prediction.step_time.breakdown import StageTime, TimeBreakdown
from mimokit.prediction.step_time.collectives import TimedMessage, gathered, sent
from mimokit.prediction.step_time.layer import LayerWork, layer_work
from mimokit.prediction.step_time.layer_input import LayerInput
from mimokit.prediction.step_time.system import HALF, System
from mimokit.prediction.step_time.terms import Term, TimedTerms, TimePiece, added

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


LayerWorks = Mapping[bool, LayerWork]
"""Whether a layer has experts -> what it does; of the kinds that a module has."""


def layer_works(
    module: Module, sizes: ParallelSizes, inputs: ModuleInput, system: System
) -> LayerWorks:
    """Return what the kinds of layers of a module do, which no stage changes."""
    net = module.net
    tokens = inputs.sequences * inputs.seq / sizes.context
    visible = visible_tokens(net, inputs.seq)
    kinds = {moe for moe in (None, net.moe) if moe is not None or net.dense_layers}
    layers = [LayerInput(net, moe, sizes, tokens, visible, system) for moe in kinds]
    return {layer.moe is not None: layer_work(layer, trained=inputs.trained) for layer in layers}


@dataclass(frozen=True)
class StageWork:
    """A part of what a stage does with a micro-batch.

    Attributes:
        count: times that it does it.
        weights: seconds of each time in gradients of weights, where they come apart.
        again: it is computed again, in the backward pass.
    """

    way: Way
    work: TimedTerms
    count: Numbers = 1.0
    weights: Numbers | None = None
    again: bool = False


def stage_time(works: Iterable[StageWork]) -> StageTime:
    """Return the time of a stage for one micro-batch."""
    times = {way: TimeBreakdown() for way in WAYS}
    weights: Numbers = 0.0
    for each in works:
        times[each.way] += each.work.time.times(each.count)
        if each.weights is not None:
            weights = weights + each.count * each.weights
    return StageTime(times["forward"], times["backward"], weights)


def works_outside_layers(
    module: Module, sizes: ParallelSizes, inputs: ModuleInput, system: System, stage: Numbers
) -> Iterator[StageWork]:
    """Yield what a stage does with a micro-batch before and behind its layers.

    Backward it has two products for each of the forward pass, or one where weights have no
    gradient. A frozen module with no trained module before it has no backward pass.
    """
    tokens = inputs.sequences * inputs.seq / sizes.context
    ends = TimedTerms.of(end_terms(module, sizes, tokens, system, stage))
    if start := _start_terms(system):
        yield StageWork("forward", TimedTerms.of(start))
    yield StageWork("forward", ends)
    if inputs.trained or inputs.passes_gradient:
        factor = 1.0 + inputs.trained
        table = TimedTerms.of(_table_terms(module, sizes, system, stage) * inputs.trained)
        terms = chain((term.times(factor) for term in ends.terms), table.terms)
        work = TimedTerms(terms, ends.time.times(factor) + table.time)
        apart = inputs.trained and inputs.weights_apart
        yield StageWork("backward", work, weights=ends.time.matrix if apart else None)


def works_of_layers(
    module: Module,
    sizes: ParallelSizes,
    inputs: ModuleInput,
    system: System,
    stage: Numbers,
    layers: LayerWorks,
) -> Iterator[StageWork]:
    """Yield what a stage does with a micro-batch in its layers."""
    has_backward = inputs.trained or inputs.passes_gradient
    apart = inputs.trained and inputs.weights_apart
    dealt = layers_of(module, sizes, stage)
    first = dealt.first(system.recipe.recompute_layers)
    for has_experts, count, again in (
        (False, dealt.dense, first.dense), (True, dealt.expert, first.expert),
    ):  # fmt: skip
        if has_experts in layers:
            layer = layers[has_experts]
            yield StageWork("forward", layer.forward, count)
            if has_backward:
                weights = layer.weights.time.total if apart else None
                yield StageWork("backward", layer.backward, count, weights=weights)
                yield from _recomputed(layer, sizes, count, again)


def _recomputed(
    layer: LayerWork, sizes: ParallelSizes, count: Numbers, again: Numbers
) -> Iterator[StageWork]:
    """Yield what the backward pass of `count` layers computes again.

    Args:
        again: of them, those that a recipe recomputes whole.
    """
    whole = np.where(np.equal(sizes.recompute, RECOMPUTE_FULL), count, again)
    cores = np.equal(sizes.recompute, RECOMPUTE_SELECTIVE) * count
    for work, times in ((layer.forward, whole), (layer.cores, cores)):
        if np.any(times):
            yield StageWork("backward", work, times, again=True)


def _table_terms(
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


def _start_terms(system: System) -> tuple[Term, ...]:
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
    layer = layer_work(LayerInput(net, net.moe, sizes, tokens, visible, system))
    return tuple(
        replace(term, name=f"layer of further tokens: {term.name}").times(module.next_token_layers)
        for term in layer.forward.terms
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
    message, several = sent(system.connected, volume, sizes.ranks_per_stage), sizes.pipeline > 1
    return replace(message, latency=message.latency * several, bytes=message.bytes * several)


@dataclass(frozen=True)
class UpdateTerms:
    """What a step does once, after its last micro-batch."""

    reduce: Term
    gather: Term
    optimizer: Term


@remembered
def update_terms(
    module: Module, sizes: ParallelSizes, system: System, *, trained: bool = True
) -> UpdateTerms:
    """Return what the first stage does once per step, without overlap.

    Args:
        trained: False: there are no gradients and no optimizer; only weights that are sharded in
            full are gathered.
    """
    parameters = rank_parameters(module, sizes, 0)
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
