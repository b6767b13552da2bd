"""Seconds and bytes of one module, for one layout or an array of layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from mimokit.architecture import LanguageModel
from mimokit.architecture.modules import DecoderHead, EncoderBranch, Model, Module
from mimokit.config.runtime import ZERO_BUBBLE, PipelineOrder
from mimokit.config.sizes import Numbers, ParallelSizes
from mimokit.prediction.layout import Layout, around
from mimokit.prediction.memory import (
    MemoryLine,
    memory_lines,
    micro_batches_in_flight,
    micro_batches_through,
    stage_memory,
    total_bytes,
)
from mimokit.prediction.step_time import ModuleInput, ModuleStep, System, module_step
from mimokit.prediction.step_time.collectives import TimedMessage, gathered
from mimokit.prediction.step_time.pipeline import last_round, slowest_and_once
from mimokit.prediction.step_time.stage import dealt
from mimokit.prediction.workload import Workload, branches_of, decoders_of, language_of


@dataclass(frozen=True)
class ModuleLoad:
    """A module with its sizes and its input, from which follow its seconds and its bytes."""

    module: Module
    sizes: ParallelSizes
    inputs: ModuleInput
    micro_batches: Numbers
    system: System

    def step(self) -> ModuleStep:
        """Return its seconds where it runs alone."""
        return module_step(self.module, self.sizes, self.inputs, self.system, self.micro_batches)

    def bytes(self, stage: Numbers, held_for: Numbers) -> Mapping[str, Numbers]:
        """Return the bytes on a rank of a stage that stores `held_for` micro-batches, by part."""
        return stage_memory(*self._network, held_for, stage, held_for=held_for, **self._stored)

    def memory_lines(self, stage: int, held_for: float) -> tuple[MemoryLine, ...]:
        """Return the same with formulas."""
        return memory_lines(*self._network, held_for, stage, held_for=held_for, **self._stored)

    @property
    def _network(self) -> tuple[Module, ParallelSizes, Any]:
        # Without the micro-batches of a step, so that the bytes of other batches are remembered.
        return self.module, self.sizes, self.inputs.seq

    @property
    def _stored(self) -> dict[str, Any]:
        return {
            "samples": self.inputs.sequences,
            "frozen": not self.inputs.trained,
            "passes_gradient": self.inputs.passes_gradient,
            "storage": self.system.storage,
        }


@dataclass(frozen=True)
class LanguageCost:
    """Cost of the language model without encoders, or of a decoder behind it.

    Attributes:
        first, last: bytes on the first and on the last stage, by part.
        held: micro-batches whose activations these two hold.
        kept: bytes of the activations of one, likewise.
        sample_bytes: bytes per sample that a decoder behind it receives.
        decoders: the costs of these.
        topology: (module, the modules that it feeds), feeders first, of all modules of the model.
        load: what all this follows from.
    """

    sizes: ParallelSizes
    micro_batches: Numbers
    step: ModuleStep
    first: Mapping[str, Numbers]
    last: Mapping[str, Numbers]
    load: ModuleLoad
    order: PipelineOrder | None = None
    name: str = ""
    trained: bool = True
    held: tuple[Numbers, Numbers] = (1.0, 1.0)
    kept: tuple[Numbers, Numbers] = (0.0, 0.0)
    sample_bytes: float = 0.0
    decoders: tuple[LanguageCost, ...] = ()
    topology: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @cached_property
    def memory(self) -> Numbers:
        """Bytes of the fullest rank."""
        return np.maximum(total_bytes(self.first), total_bytes(self.last))

    def memory_between(self, ahead: Numbers, behind: Numbers) -> Numbers:
        """Return the bytes of the fullest rank next to other modules on a pipeline."""
        first = self.in_flight(0, ahead, behind) - self.held[0]
        last = self.in_flight(self.sizes.pipeline - 1, ahead, behind) - self.held[1]
        return np.maximum(
            total_bytes(self.first) + first * self.kept[0],
            total_bytes(self.last) + last * self.kept[1],
        )

    @property
    def hop(self) -> Numbers:
        """Seconds of a send between two of its stages."""
        return self.step.hop

    def in_flight(self, stage: Numbers, ahead: Numbers, behind: Numbers) -> Numbers:
        """Return the micro-batches whose activations a stage holds; see `language_in_flight`."""
        order = None if self.order == ZERO_BUBBLE and not self.trained else self.order
        return micro_batches_in_flight(self.sizes, self.micro_batches, stage, order, ahead, behind)

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
        sample_bytes: bytes per sample that the module behind it receives.
        load: what all this follows from.
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
    load: ModuleLoad
    trained: bool = True
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


def load_of(
    module: Module, model: Model, sizes: ParallelSizes, workload: Workload, system: System
) -> ModuleLoad:
    """Return what a module of a model computes."""
    seen = workload.input_of(module)
    uneven = seen.imbalance_over(sizes.data, sizes.micro_batch)
    inputs = ModuleInput(
        seen.length,
        seen.count * sizes.micro_batch * uneven,
        trained=module.name not in workload.frozen,
        passes_gradient=workload.trains_before(module.name, model),
        weights_apart=workload.pipeline_order == ZERO_BUBBLE,
    )
    return ModuleLoad(module, sizes, inputs, workload.micro_batches(sizes), system)


def language_cost(model: Model, layout: Layout, workload: Workload, system: System) -> LanguageCost:
    """Return the cost of the language model, with those of decoders behind it."""

    def cost(module: LanguageModel | DecoderHead) -> LanguageCost:
        load, held, (first, last) = loaded_ends(module, model, layout, workload, system)
        return LanguageCost(
            load.sizes,
            load.micro_batches,
            load.step(),
            first,
            last,
            load,
            workload.pipeline_order,
            name=_name_of(module, layout),
            trained=load.inputs.trained,
            held=held,
            kept=(first["activations"] / held[0], last["activations"] / held[1]),
            sample_bytes=float(system.number_bytes) * workload.seq_length * module.net.hidden,
            topology=tuple(layout.topology.items()),
        )

    return replace(cost(language_of(model)), decoders=tuple(map(cost, decoders_of(model))))


def loaded_ends(
    module: LanguageModel | DecoderHead,
    model: Model,
    layout: Layout,
    workload: Workload,
    system: System,
) -> tuple[ModuleLoad, tuple[Numbers, Numbers], list[Mapping[str, Numbers]]]:
    """Return what a language model or decoder computes and holds; see `LanguageCost`."""
    sizes = dealt(module, layout.modules[_name_of(module, layout)], system)
    load, stages = load_of(module, model, sizes, workload, system), (0, sizes.pipeline - 1)
    first, last = (language_in_flight(module, layout, workload, stage) for stage in stages)
    return load, (first, last), list(map(load.bytes, stages, (first, last)))


def _name_of(module: LanguageModel | DecoderHead, layout: Layout) -> str:
    """Return the name in a layout, which may call the language model otherwise."""
    return layout.language if isinstance(module, LanguageModel) else module.name


def language_in_flight(
    module: LanguageModel | DecoderHead, layout: Layout, workload: Workload, stage: Numbers
) -> Numbers:
    """Return the micro-batches whose activations a stage of the language model holds at once.

    Colocated encoders run for some micro-batches, and the language model for these, before they
    run for the next. Of what is frozen there are no gradients of weights that come later. A stage
    of a decoder holds those between it and the last stage, as all stages do.
    """
    name, order = _name_of(module, layout), workload.pipeline_order
    sizes = layout.modules[name]
    count = workload.micro_batches(sizes)
    ahead: Numbers = 0.0
    behind: Numbers = 0.0
    if layout.mode == "heterogeneous":
        through = {n: micro_batches_through(own, count) for n, own in layout.modules.items()}
        ahead, behind = around(layout.topology.items(), through)[name]
    if layout.mode == "colocated" and workload.encoder_microbatches is not None:
        count = np.minimum(count, workload.encoder_microbatches)
    if order == ZERO_BUBBLE and module.name in workload.frozen:
        order = None
    return micro_batches_in_flight(sizes, count, stage, order, ahead, behind)


def encoder_costs(
    model: Model, layout: Layout, workload: Workload, system: System
) -> list[EncoderCost]:
    """Return the costs of all encoders of a model, in its order.

    In homogeneous mode context parallelism cuts sequences, not items: each context-parallel rank
    encodes all items of its replica.
    """

    def load(branch: EncoderBranch) -> ModuleLoad:
        sizes = layout.modules[branch.name]
        whole = sizes.of_whole_items if layout.mode == "homogeneous" else sizes
        load = load_of(branch, model, whole, workload, system)
        return replace(load, micro_batches=workload.micro_batches(sizes))

    return [encoder_cost(branch, load(branch), workload) for branch in branches_of(model)]


def encoder_cost(branch: EncoderBranch, load: ModuleLoad, workload: Workload) -> EncoderCost:
    """Return the cost of an encoder. Its projector is frozen if the encoder is."""
    seen, sizes, step, parts = workload.input_of(branch), load.sizes, load.step(), load.bytes(0, 1)
    forward, backward = step.busy(sizes.pipeline)
    first, middle, last = (stage.total for stage in step.stages)
    slowest, once = slowest_and_once(first, middle, last, sizes.pipeline)
    return EncoderCost(
        name=branch.name,
        sizes=sizes,
        forward=forward,
        backward=backward,
        update=step.data + step.optimizer,
        held=total_bytes(parts) - parts["activations"] - parts["logits"],
        activations=parts["activations"],
        micro_batches=load.micro_batches,
        sample_bytes=float(load.system.number_bytes)
        * branch.projector.row_width
        * seen.count
        * seen.length
        / branch.positions_of_a_row,
        trained=load.inputs.trained,
        weights=step.weights,
        others=once - slowest,
        hop=step.hop,
        load=load,
    )


def bridge_message(
    sender: EncoderCost | LanguageCost, receiver: ParallelSizes, workload: Workload, system: System
) -> TimedMessage:
    """Return the move of a step's outputs of a module to another one on shared ranks.

    Groups of max(d) / min(d) ranks gather in one direction. In the other direction each rank keeps
    its slice (arXiv 2605.27678, sec. 3.1). A group of one rank moves nothing.
    """
    more = np.maximum(sender.sizes.data, receiver.data)
    fewer = np.minimum(sender.sizes.data, receiver.data)
    volume = sender.sample_bytes * workload.global_batch_size / fewer
    return gathered(system.connected, volume, np.maximum(1, more / fewer), 1)


def bridge_seconds(
    sender: EncoderCost | LanguageCost, receiver: ParallelSizes, workload: Workload, system: System
) -> Numbers:
    """Return the seconds of moving a step's outputs of a module on shared ranks."""
    return bridge_message(sender, receiver, workload, system).seconds
