"""The schedule of modules that share their ranks: no pipeline, one micro-batch after the other.

The graph is cut between modules, so that forward and backward of each module are separate steps,
which can be timed, stepped through and shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from mimokit.engine.colocated.model import ColocatedModel
from mimokit.engine.data.batch import (
    ITEMS,
    Batch,
    rows_per_sample,
    slice_modality,
    slice_text,
    take_checked_batch,
    to_device,
)
from mimokit.engine.data.check import check_words
from mimokit.engine.device import rank_device
from mimokit.engine.models.encoder import Encoder
from mimokit.engine.models.rng import random_state_of
from mimokit.engine.parallel.gradients import (
    ModuleToGridTuple,
    get_module_to_grid_tuple,
    multimodule_no_sync,
)
from mimokit.engine.parallel.loss import loss_sum, vocab_parallel_cross_entropy
from mimokit.engine.steps import Step, StepGenerator
from mimokit.step_kinds import StepKind


@dataclass(frozen=True)
class MicrobatchLoss:
    """The result of one micro-batch on one rank.

    Attributes:
        loss_sum: sum over unmasked tokens.
        num_tokens: number of unmasked tokens.
        module_tokens: module -> number of tokens that this rank computed for it.
    """

    loss_sum: float
    num_tokens: int
    module_tokens: dict[str, int]


@dataclass
class _Boundary:
    """The tensors at which the graph is cut between an encoder and the language model."""

    encoder_output: torch.Tensor
    bridge_input: torch.Tensor
    bridge_output: torch.Tensor
    language_input: torch.Tensor


def forward_backward_steps(
    data_iterator: Iterator[Batch], model: ColocatedModel, num_microbatches: int
) -> StepGenerator[list[MicrobatchLoss]]:
    """Yield the steps of all micro-batches; they leave summed, unreduced gradients in the buffers.

    Args:
        data_iterator: yields the batches of this rank.
        model: the model on this rank.
        num_microbatches: number of micro-batches to run.

    Raises:
        ValueError: if a batch's placeholders do not match its images.
        ReplicaMismatchError: if an encoder's tensor-parallel ranks disagree.
    """
    modules = get_module_to_grid_tuple(model.model, model.module_to_grid_map)
    run = partial(_microbatch, data_iterator, model)
    return no_pipelining_steps(run, modules, num_microbatches)


def no_pipelining_steps(
    run: Callable[[int], StepGenerator[MicrobatchLoss]],
    modules: ModuleToGridTuple,
    num_microbatches: int,
) -> StepGenerator[list[MicrobatchLoss]]:
    """Yield the steps of all micro-batches, one after the other; DDP sees which one is the last.

    Training runs it with a forward that can be stopped between modules, and
    `mimokit.engine.forward_backward_no_pipelining` with a forward step of the user's.

    Args:
        run: micro-batch -> the steps of its forward and backward.
        modules: all modules on this rank.
        num_microbatches: number of micro-batches to run.
    """
    losses = []
    with multimodule_no_sync(modules):
        for microbatch in range(num_microbatches - 1):
            losses.append((yield from run(microbatch)))
    losses.append((yield from run(num_microbatches - 1)))
    return losses


def _microbatch(
    data_iterator: Iterator[Batch], model: ColocatedModel, microbatch: int
) -> StepGenerator[MicrobatchLoss]:
    batch, boundaries, logits = yield from forward_microbatch(data_iterator, model, microbatch)
    loss, tokens = yield from _loss(batch, logits, model, microbatch)
    if loss.requires_grad:
        yield Step(StepKind.BACKWARD, model.language_module_name, microbatch)
        loss.backward()  # type: ignore[no-untyped-call]
    for name, boundary in boundaries.items():
        if name in model.frozen:
            continue
        yield Step(StepKind.SCATTER, name, microbatch)
        _backward(boundary.bridge_output, boundary.language_input.grad)
        yield Step(StepKind.BACKWARD, name, microbatch)
        _backward(boundary.encoder_output, boundary.bridge_input.grad)
    model.modules()[model.language_module_name].num_tokens += tokens
    computed = {name: len(boundary.encoder_output) for name, boundary in boundaries.items()}
    computed[model.language_module_name] = batch["input_ids"].numel()
    return MicrobatchLoss(float(loss.detach()), tokens, computed)


def _backward(output: torch.Tensor, gradient: torch.Tensor | None) -> None:
    if gradient is None:
        gradient = torch.zeros_like(output)
    if output.requires_grad:
        torch.autograd.backward(output, gradient)


def forward_microbatch(
    data_iterator: Iterator[Batch], model: ColocatedModel, microbatch: int
) -> StepGenerator[tuple[Batch, dict[str, _Boundary], torch.Tensor]]:
    """Yield the steps from reading to logits.

    Returns:
        The language model's part of the batch, the cuts in the graph, and the logits
        [samples, tokens, vocabulary / TP].
    """
    yield Step(StepKind.LOAD, None, microbatch)
    loaded = take_checked_batch(data_iterator, model.special_token_ids, model.tokens_per_item)
    loaded = to_device(loaded, rank_device())
    yield Step(StepKind.SLICE, None, microbatch)
    text = slice_text(loaded, *_within_loaded(model, model.language_module_name))
    boundaries = {}
    for name, inputs in _encoder_inputs(model, loaded).items():
        boundary = yield from _encode(model, name, inputs, microbatch)
        if boundary is not None:
            boundaries[name] = boundary
    yield Step(StepKind.FORWARD, model.language_module_name, microbatch)
    embeddings = {name: boundary.language_input for name, boundary in boundaries.items()}
    return text, boundaries, language_forward(model, text, embeddings)


def shares_of(model: ColocatedModel, loaded: Batch) -> Batch:
    """Return the samples of a loaded batch that this rank computes, of every module its own."""
    text = slice_text(loaded, *_within_loaded(model, model.language_module_name))
    inputs = {
        name: slice_modality(given, *_within_loaded(model, name))
        for name, given in _encoder_inputs(model, loaded).items()
    }
    return {**text, "modality_inputs": inputs}


def shares_items(model: ColocatedModel, name: str) -> bool:
    """Return whether an encoder shares its items with other replicas, and so always runs."""
    return _shared_encoder(model, name) is not None


def _encoder_inputs(model: ColocatedModel, loaded: Batch) -> dict[str, Batch]:
    """Return the inputs of all encoders that run on this rank.

    Encoders that share their items run on every replica, and on all of them in the same order.
    """
    given: dict[str, Batch] = loaded.get("modality_inputs") or {}
    sharing = {
        name: shared
        for name in model.plan.modules
        if (shared := _shared_encoder(model, name)) is not None
    }
    if not sharing:
        return given
    none = loaded["input_ids"].new_zeros(len(loaded["input_ids"]))
    missing = {
        name: {ITEMS: none, kind: encoder.no_items()}
        for name, (kind, encoder) in sharing.items()
        if name not in given
    }
    return {name: (given | missing)[name] for name in model.plan.modules if name in given | missing}


def _shared_encoder(model: ColocatedModel, name: str) -> tuple[str, Encoder] | None:
    """Return an encoder that shares its items, with the name of its inputs."""
    if name not in model.model.modality_submodules:
        return None
    ((kind, encoder),) = model.model.modality_submodules[name].module.encoders.items()
    return (kind, encoder) if encoder.shares_items else None


def _within_loaded(model: ColocatedModel, *modules: str) -> tuple[int, int]:
    """Return the range of modules' samples within the batch that this rank read.

    Of several modules, the samples of one include those of the others.
    """
    rank = dist.get_rank()
    batches = [model.plan.batch.modules[module] for module in modules]
    first = batches[0].loaded[rank][0]
    starts, stops = zip(*(batch.samples[rank] for batch in batches), strict=True)
    return min(starts) - first, max(stops) - first


def _encode(
    model: ColocatedModel, name: str, inputs: Batch, microbatch: int
) -> StepGenerator[_Boundary | None]:
    """Yield the steps of an encoder; its result is None where the modality is absent.

    It is absent where no sample of the gather group has any, on all ranks of the group, unless it
    shares its items with other replicas.
    """
    together = slice(*_within_loaded(model, name, model.language_module_name))
    counts = rows_per_sample(inputs, len(inputs[ITEMS]), model.tokens_per_item[name])
    rows = counts[together].tolist()
    if not sum(rows) and not shares_items(model, name):
        return None
    output = yield from encoder_rows(
        model, name, slice_modality(inputs, *_within_loaded(model, name)), microbatch
    )
    yield Step(StepKind.GATHER, name, microbatch)
    bridge_input = output.detach().requires_grad_(output.requires_grad)
    bridge_output = model.bridges[name](bridge_input, rows)
    # Also where only other ranks of the gather group encoded items: the ranks of a tensor-parallel
    # language model all reduce in the backward, or none does.
    trained = name not in model.frozen and torch.is_grad_enabled()
    language_input = bridge_output.detach().requires_grad_(trained)
    return _Boundary(output, bridge_input, bridge_output, language_input)


def encoder_rows(
    model: ColocatedModel, name: str, inputs: Batch, microbatch: int
) -> StepGenerator[torch.Tensor]:
    """Yield the forward of an encoder over this rank's items; its result is [rows, hidden].

    Without items the result has 0 rows.
    """
    if not int(inputs[ITEMS].sum()) and not shares_items(model, name):
        width = model.model.language_model.config.hidden_size
        return torch.zeros(0, width, device=rank_device())
    yield Step(StepKind.FORWARD, name, microbatch)
    trained = name not in model.frozen
    with random_state_of(name), torch.set_grad_enabled(trained and torch.is_grad_enabled()):
        output: torch.Tensor = model.model.modality_submodules[name](encoder_inputs=inputs)
    # Megatron's projector returns a tensor that requires a gradient, trained or not.
    return output if trained else output.detach()


def language_forward(
    model: ColocatedModel, text: Batch, embeddings: dict[str, torch.Tensor]
) -> torch.Tensor:
    """Return the logits [samples, tokens, vocabulary / TP] of samples.

    Args:
        model: the model on this rank.
        text: input_ids and position_ids of the samples.
        embeddings: encoder -> the rows [rows, hidden] of the same samples, in order.
    """
    mimo = model.model
    check_words(
        text["input_ids"],
        list(mimo.special_token_ids.values()),
        mimo.language_model.module.vocab_size,
    )
    with random_state_of(model.language_module_name):
        positions = text["position_ids"] if text["position_ids"].dim() == 3 else None
        words = mimo.get_text_embeddings(text["input_ids"], None, mimo.special_token_ids)
        combined = mimo.align_embeddings_by_token_positions(
            {**embeddings, "text": words}, text["input_ids"], mimo.special_token_ids
        )
        return mimo.language_model(  # type: ignore[no-any-return]
            input_ids=None,
            position_ids=positions,
            decoder_input=combined,
            attention_mask=_causal_mask(text["input_ids"].shape[1], combined.device),
        )


def _causal_mask(tokens: int, device: torch.device) -> torch.Tensor:
    """[1, 1, tokens, tokens], True where attention is forbidden."""
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).triu(1)[None, None]


def _loss(
    batch: Batch, logits: torch.Tensor, model: ColocatedModel, microbatch: int
) -> StepGenerator[tuple[torch.Tensor, int]]:
    yield Step(StepKind.LOSS, model.language_module_name, microbatch)
    group = model.pg_collections[model.language_module_name].tp
    losses = vocab_parallel_cross_entropy(logits, batch["labels"], group)
    return loss_sum(model.loss_func, losses, batch["loss_mask"])
