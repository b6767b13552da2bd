"""Seconds and bytes of one module, for one layout or an array of layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np

from mimokit.architecture import LanguageModel
from mimokit.architecture.modules import EncoderBranch
from mimokit.architecture.parallel_sizes import Numbers, ParallelSizes
from mimokit.config.runtime import ZERO_BUBBLE, PipelineOrder
from mimokit.prediction.layout import Layout
from mimokit.prediction.memory import micro_batches_in_flight, stage_memory, total_bytes
from mimokit.prediction.step_time import ModuleInput, ModuleStep, System, module_step
from mimokit.prediction.step_time.collectives import TimedMessage, gathered
from mimokit.prediction.step_time.pipeline import last_round, slowest_and_once
from mimokit.prediction.workload import Workload


@dataclass(frozen=True)
class LanguageCost:
    """Cost of the language model without encoders."""

    sizes: ParallelSizes
    micro_batches: Numbers
    step: ModuleStep
    first: Mapping[str, Numbers]
    last: Mapping[str, Numbers]
    order: PipelineOrder | None = None

    @cached_property
    def memory(self) -> Numbers:
        """Bytes of the fullest rank."""
        return np.maximum(total_bytes(self.first), total_bytes(self.last))

    @cached_property
    def update(self) -> Numbers:
        """Seconds of gradient reduction, weight gathering and optimizer."""
        return self.step.data + self.step.optimizer

    @cached_property
    def slowest_and_once(self) -> tuple[Numbers, Numbers]:
        """Seconds of the slowest stage, and of one micro-batch through all stages."""
        first, middle, last = (stage.total for stage in self.step.stages)
        return slowest_and_once(first, middle, last, self.sizes.pipeline)

    def waiting(self, micro_batches: Numbers) -> Numbers:
        """Return the seconds that the busiest stage waits for others in as many micro-batches."""
        slowest, once = self.slowest_and_once
        filling = (once - slowest) / self.sizes.virtual * self.step.waiting
        return filling + self.last_round(micro_batches)

    def last_round(self, micro_batches: Numbers) -> Numbers:
        """Return the time that chunks lose where the last round of `micro_batches` is not full."""
        step, count = self.step, self.micro_batches
        forward, backward = step.forward / count, (step.work.total - step.forward) / count
        return last_round(forward, backward, self.sizes, micro_batches)


@dataclass(frozen=True)
class EncoderCost:
    """Cost of one encoder with its projector.

    Attributes:
        forward: seconds of the busiest stage in forward passes over one replica's share of a step.
        others: seconds of one micro-batch in all other stages, of which a rank has all chunks.
        hop: seconds of a send between two of its stages.
        weights: the part of `backward` in gradients of weights, where they come apart.
        update: seconds of gradient reduction, weight gathering and optimizer.
        held: bytes of weights, gradients, optimizer and buffers.
        sample_bytes: bytes per sample that the language model receives.
        repeated: the cost if each context-parallel rank encodes all inputs of its replica. None
            without context parallelism.
    """

    name: str
    sizes: ParallelSizes
    forward: Numbers
    backward: Numbers
    update: Numbers
    held: Numbers
    activations: Numbers
    micro_batches: Numbers
    sample_bytes: float
    repeated: EncoderCost | None = None
    weights: Numbers = 0.0
    others: Numbers = 0.0
    hop: Numbers = 0.0

    @property
    def seconds(self) -> Numbers:
        """Forward and backward of a step's share."""
        return self.forward + self.backward

    @property
    def passing(self) -> Numbers:
        """Seconds that one micro-batch spends in all stages but the busiest."""
        return self.others + 2 * self.hop * (self.sizes.pipeline - 1)

    @property
    def filling(self) -> Numbers:
        """Seconds in which its pipeline fills and drains once: each other stage takes one chunk."""
        return self.passing - self.others * (1 - 1 / self.sizes.virtual)

    def waiting(self, micro_batches: Numbers) -> Numbers:
        """Return the seconds that a stage waits for others where no other module is computed.

        Each chunk computes all of the micro-batches in turn; it waits for the chunk before it where
        they are fewer than the stages.
        """
        missing = np.maximum(0, self.sizes.pipeline - micro_batches)
        chunk = self.seconds / self.micro_batches / self.sizes.virtual
        return self.filling + (self.sizes.virtual - 1) * missing * chunk

    def memory(self, alive: Numbers) -> Numbers:
        """Return bytes, with the activations of `alive` micro-batches."""
        return self.held + alive * self.activations


def language_cost(
    model: LanguageModel,
    layout: Layout,
    workload: Workload,
    system: System,
    *,
    encoders_trained: bool = False,
) -> LanguageCost:
    """Return the cost of the language model."""
    sizes = layout.modules[layout.language]
    micro_batches = workload.global_batch_size / (sizes.data * sizes.micro_batch)
    frozen = model.name in workload.frozen
    inputs = language_input(model, sizes, workload, encoders_trained=encoders_trained)
    step = module_step(model, sizes, inputs, system, micro_batches)

    def memory(stage: Numbers) -> Mapping[str, Numbers]:
        return stage_memory(
            model,
            sizes,
            workload.seq_length,
            micro_batches,
            stage,
            frozen=frozen,
            passes_gradient=encoders_trained,
            held_for=language_in_flight(model, layout, workload, stage),
            storage=system.storage,
        )

    ends = memory(0), memory(sizes.pipeline - 1)
    return LanguageCost(sizes, micro_batches, step, *ends, workload.pipeline_order)


def language_in_flight(
    model: LanguageModel, layout: Layout, workload: Workload, stage: Numbers
) -> Numbers:
    """Return the micro-batches whose activations a stage of the language model holds at once.

    Colocated encoders run for some micro-batches, and the language model for these, before they
    run for the next. Of what is frozen there are no gradients of weights that come later.
    """
    sizes, order = layout.modules[layout.language], workload.pipeline_order
    count: Numbers = workload.global_batch_size / (sizes.data * sizes.micro_batch)
    ahead: Numbers = 0
    if layout.mode == "heterogeneous" and layout.encoders:
        ahead = reduce(np.maximum, (layout.modules[name].pipeline for name in layout.encoders))
    if layout.mode == "colocated" and workload.encoder_microbatches is not None:
        count = np.minimum(count, workload.encoder_microbatches)
    if order == ZERO_BUBBLE and model.name in workload.frozen:
        order = None
    return micro_batches_in_flight(sizes, count, stage, order, ahead)


def language_input(
    model: LanguageModel, sizes: ParallelSizes, workload: Workload, *, encoders_trained: bool
) -> ModuleInput:
    """Return what the language model computes per micro-batch."""
    trained = model.name not in workload.frozen
    apart = workload.pipeline_order == ZERO_BUBBLE
    return ModuleInput(workload.seq_length, sizes.micro_batch, trained, encoders_trained, apart)


def encoder_input(branch: EncoderBranch, sizes: ParallelSizes, workload: Workload) -> ModuleInput:
    """Return what an encoder computes per micro-batch."""
    seen = workload.input_of(branch)
    uneven = seen.imbalance_over(sizes.data, sizes.micro_batch)
    sequences = seen.count * sizes.micro_batch * uneven
    trained = branch.name not in workload.frozen
    apart = workload.pipeline_order == ZERO_BUBBLE
    return ModuleInput(seen.length, sequences, trained, passes_gradient=False, weights_apart=apart)


def encoder_cost(
    branch: EncoderBranch,
    sizes: ParallelSizes,
    workload: Workload,
    system: System,
    language_hidden: int,
) -> EncoderCost:
    """Return the cost of an encoder. Its projector is frozen if the encoder is."""
    micro_batches = workload.global_batch_size / (sizes.data * sizes.micro_batch)
    cost = _encoder_cost(branch, sizes, workload, system, micro_batches, language_hidden)
    if not np.any(np.greater(sizes.context, 1)):
        return cost
    uncut = replace(sizes, context=1, data=sizes.data * sizes.context)
    repeated = _encoder_cost(branch, uncut, workload, system, micro_batches, language_hidden)
    return replace(cost, repeated=repeated)


def _encoder_cost(
    branch: EncoderBranch,
    sizes: ParallelSizes,
    workload: Workload,
    system: System,
    micro_batches: Numbers,
    language_hidden: int,
) -> EncoderCost:
    seen = workload.input_of(branch)
    frozen = branch.name in workload.frozen
    inputs = encoder_input(branch, sizes, workload)
    step = module_step(branch, sizes, inputs, system, micro_batches)
    parts = stage_memory(
        branch, sizes, seen.length, micro_batches, 0,
        samples=inputs.sequences, frozen=frozen, held_for=1, storage=system.storage,
    )  # fmt: skip
    held = total_bytes(parts) - parts["activations"] - parts["logits"]
    share = np.where(np.greater(step.work.total, 0), step.forward / step.work.total, 1.0)
    share = np.minimum(share, 1.0)  # of a frozen encoder rounding makes it 1 + 2e-16
    merge = getattr(branch.encoder, "merge", 1) ** 2
    first, middle, last = (stage.total for stage in step.stages)
    slowest, once = slowest_and_once(first, middle, last, sizes.pipeline)
    steady = step.passes - step.bubble - 2 * step.hop * (sizes.pipeline - 1)
    return EncoderCost(
        name=branch.name,
        sizes=sizes,
        forward=steady * share,
        backward=steady * (1 - share),
        update=step.data + step.optimizer,
        held=held,
        activations=parts["activations"],
        micro_batches=micro_batches,
        sample_bytes=float(system.number_bytes)
        * branch.projector.row_width
        * seen.count
        * seen.length
        / merge,
        weights=step.weights,
        others=once - slowest,
        hop=step.hop,
    )


def bridge_message(
    encoder: EncoderCost, language: ParallelSizes, workload: Workload, system: System
) -> TimedMessage:
    """Return the move of a step's encoder outputs to the language model on shared ranks.

    Groups of max(d) / min(d) ranks gather in one direction. In the other direction each rank keeps
    its slice (arXiv 2605.27678, sec. 3.1). A group of one rank moves nothing.
    """
    more = np.maximum(encoder.sizes.data, language.data)
    fewer = np.minimum(encoder.sizes.data, language.data)
    volume = encoder.sample_bytes * workload.global_batch_size / fewer
    return gathered(system.connected, volume, np.maximum(1, more / fewer), 1)


def bridge_seconds(
    encoder: EncoderCost, language: ParallelSizes, workload: Workload, system: System
) -> Numbers:
    """Return the seconds of moving a step's encoder outputs on shared ranks."""
    return bridge_message(encoder, language, workload, system).seconds
