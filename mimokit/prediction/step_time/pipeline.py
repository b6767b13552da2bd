"""Closed form of a step's pipeline: each stage once, and the slowest stage per micro-batch."""

from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from mimokit.architecture.layers_on_stage import layers_before
from mimokit.architecture.modules import Module
from mimokit.config.sizes import Numbers, ParallelSizes
from mimokit.prediction.memo import remembered
from mimokit.prediction.step_time.breakdown import StageTime, TimeBreakdown
from mimokit.prediction.step_time.stage import (
    ModuleInput,
    boundary_time,
    layer_works,
    stage_time,
    update_terms,
    works_of_layers,
    works_outside_layers,
)
from mimokit.prediction.step_time.system import System


@dataclass(frozen=True)
class ModuleStep:
    """One step of a module that runs alone.

    Attributes:
        work: seconds of the busiest stage over all micro-batches, by part.
        forward: the part of `work` in forward passes.
        pipeline: seconds of sends between stages that are not overlapped.
        bubble: seconds in which the busiest stage waits.
        data: seconds of gradient reduction and weight gathering that are not overlapped.
        weights: the part of `work` in gradients of weights that come apart.
        waiting: what of the time in which 1F1B waits is left, where gradients of weights fill it.
        hop: seconds of a send between two stages.
    """

    work: TimeBreakdown
    forward: Numbers
    pipeline: Numbers
    bubble: Numbers
    data: Numbers
    optimizer: Numbers
    stages: tuple[StageTime, StageTime, StageTime]
    weights: Numbers = 0.0
    waiting: Numbers = 1.0
    hop: Numbers = 0.0

    @property
    def passes(self) -> Numbers:
        """Seconds of forward and backward of all micro-batches."""
        return self.work.total + self.pipeline + self.bubble

    @property
    def total(self) -> Numbers:
        """Seconds of the step."""
        return self.passes + self.data + self.optimizer

    def busy(self, stages: Numbers) -> tuple[Numbers, Numbers]:
        """Return forward and backward of the busiest of so many stages, with sends to the next."""
        steady = self.passes - self.bubble - 2 * self.hop * (stages - 1)
        work = self.work.total
        share = np.where(np.greater(work, 0), self.forward / work, 1.0)
        share = np.minimum(share, 1.0)  # of a frozen encoder rounding makes it 1 + 2e-16
        return steady * share, steady * (1 - share)


def places(stages: int) -> list[int]:
    """Return which of `ModuleStep.stages` stands for each of so many stages."""
    return [0, *[1] * (stages - 2), 2][:stages]


@remembered
def module_step(
    module: Module,
    sizes: ParallelSizes,
    inputs: ModuleInput,
    system: System,
    micro_batches: Numbers,
) -> ModuleStep:
    """Return one step of a module that runs alone.

    A pipeline takes m times its slowest stage, and each other stage once. With v chunks per stage
    the other stages take 1/v of that (arXiv 2104.04473, sec. 2.2), and a last round of fewer
    micro-batches than stages takes longer. This is exact for equal stages and a close bound
    otherwise. Gradients of weights that come apart and later fill twice their
    time of it (ZB-H1: forward + backward - 2 x weights instead of forward + backward; arXiv
    2401.10241, table 2).
    """
    last = sizes.pipeline - 1
    times = _stages(module, sizes, inputs, system)
    slowest, once, busiest = times.slowest, times.once, times.busiest
    hop = boundary_time(module, sizes, inputs, system)
    hidden = system.software.overlaps_sends * np.greater(sizes.virtual, 1)
    update = update_terms(module, sizes, system, trained=inputs.trained)
    waiting: Numbers = 1.0
    if inputs.weights_apart:
        waiting = np.maximum(0.0, 1 - 2 * busiest.weights / slowest)
    bubble = (once - slowest) / sizes.virtual * waiting
    bubble = bubble + last_round(
        busiest.forward.total, busiest.backward.total, sizes, micro_batches
    )
    domains = np.maximum(1.0, sizes.ranks / system.hardware.domain_ranks)
    late = system.software.straggling * np.log2(domains) * (slowest * micro_batches + bubble)
    return ModuleStep(
        work=(busiest.forward + busiest.backward).times(micro_batches),
        forward=busiest.forward.total * micro_batches,
        pipeline=np.where(hidden, 0.0, 2 * hop * sizes.virtual * micro_batches) + 2 * hop * last,
        bubble=bubble,
        data=late
        + _exposed(
            update.reduce.seconds, update.gather.seconds, busiest, sizes, system, micro_batches
        ),
        optimizer=update.optimizer.seconds,
        stages=times.stages,
        weights=busiest.weights * micro_batches if inputs.weights_apart else 0.0,
        waiting=waiting,
        hop=hop,
    )


@dataclass(frozen=True)
class _StageTimes:
    """Seconds of the stages for one micro-batch.

    Attributes:
        stages: the first, the fullest middle and the last one.
        slowest: of these.
        once: of all stages, one after the other.
        busiest: the slowest of these.
    """

    stages: tuple[StageTime, StageTime, StageTime]
    slowest: Numbers
    once: Numbers
    busiest: StageTime


@remembered
def _stages(
    module: Module, sizes: ParallelSizes, inputs: ModuleInput, system: System
) -> _StageTimes:
    last = sizes.pipeline - 1
    middle: Numbers = np.minimum(1, last)
    mean: Numbers = 1.0
    if np.any(np.greater(sizes.logits_as_layers, 0)):
        middle, mean = fullest_between(module.net.layers, sizes)
    layers = layer_works(module, sizes, inputs, system)

    def timed(stage: Numbers) -> StageTime:
        known = module, sizes, inputs, system, stage
        return stage_time(chain(works_of_layers(*known, layers), works_outside_layers(*known)))

    first = between = end = timed(0)
    if np.ndim(last) or last > 0:
        between = end = timed(last)
    if np.ndim(last) or last > 1:
        between = timed(middle)
    slowest, once = slowest_and_once(first.total, between.total, end.total, sizes.pipeline)
    once = once - np.maximum(0, sizes.pipeline - 2) * (1 - mean) * between.total
    stages = first, between, end
    return _StageTimes(stages, slowest, once, _busiest(stages, slowest))


def last_round(
    forward: Numbers, backward: Numbers, sizes: ParallelSizes, micro_batches: Numbers
) -> Numbers:
    """Return the seconds that chunks of p stages wait in a last round of fewer micro-batches.

    Each chunk but one waits for the micro-batches that are missing, in the backward pass; in the
    forward pass only if it is the first round.
    """
    missing = np.mod(-micro_batches, sizes.pipeline)
    each = backward + np.where(np.less(micro_batches, sizes.pipeline), forward, 0.0)
    return (sizes.virtual - 1) / sizes.virtual * missing * each


def slowest_and_once(
    first: Numbers, middle: Numbers, last: Numbers, pipeline: Numbers
) -> tuple[Numbers, Numbers]:
    """Return the slowest of p stages, and the time of one micro-batch through all of them."""
    slowest = np.maximum(np.maximum(first, middle), last)
    between = np.maximum(0, pipeline - 2)
    return slowest, np.where(np.equal(pipeline, 1), first, first + last + between * middle)


def _busiest(stages: tuple[StageTime, ...], slowest: Numbers) -> StageTime:
    first, middle, last = stages
    is_last, is_first = np.equal(last.total, slowest), np.equal(first.total, slowest)

    def choose(*times: TimeBreakdown) -> TimeBreakdown:
        each = zip(*(time.parts for time in times), strict=True)
        return TimeBreakdown(
            *[np.where(is_last, e, np.where(is_first, b, between)) for b, between, e in each]
        )

    apart: Numbers = 0.0
    if any(np.ndim(stage.weights) or stage.weights for stage in stages):
        apart = np.where(is_last, last.weights, np.where(is_first, first.weights, middle.weights))
    forward = choose(*(stage.forward for stage in stages))
    return StageTime(forward, choose(*(stage.backward for stage in stages)), apart)


def _exposed(
    reduce: Numbers,
    collect: Numbers,
    stage: StageTime,
    sizes: ParallelSizes,
    system: System,
    micro_batches: Numbers,
) -> Numbers:
    """Return the data-parallel seconds that are not overlapped.

    With overlap, gradients are reduced during the backward pass of the last micro-batch and weights
    are gathered during the first forward pass; with chunks, during those of p micro-batches. With
    fully sharded weights, each pass gathers weights and each backward pass reduces gradients; a
    frozen module without a trained one before it has no backward pass.
    """
    if not system.software.overlaps_data:
        return reduce + collect
    apart = np.logical_and(sizes.distributed_optimizer, not system.software.overlaps_shards)
    window = np.where(np.greater(sizes.virtual, 1), np.minimum(sizes.pipeline, micro_batches), 1)
    hiding = np.where(sizes.reduces_behind, 0.0, window * stage.backward.total)
    once = np.maximum(0.0, reduce - hiding)
    once = once + np.maximum(0.0, collect - window * stage.forward.total)
    each = np.maximum(0.0, collect - stage.forward.total)
    behind = np.greater(stage.backward.total, 0)
    each = each + behind * np.maximum(0.0, collect + reduce - stage.backward.total)
    once = np.where(apart, reduce + collect, once)
    return np.where(sizes.fully_sharded, micro_batches * each, once)


def fullest_between(layers: int, sizes: ParallelSizes) -> tuple[Numbers, Numbers]:
    """Return the fullest stage between the first and the last, and the mean of those over it.

    Where layers are dealt by their products, stages differ by a layer.
    """
    last = np.asarray(sizes.pipeline) - 1
    stages = np.arange(1, max(2, int(np.max(last))))
    wide = [np.asarray(part)[..., None] for part in (sizes.pipeline, sizes.logits_as_layers)]
    every = replace(sizes, pipeline=wide[0], logits_as_layers=wide[1])
    held = layers_before(layers, every, stages + 1) - layers_before(layers, every, stages)
    held = np.where(stages < last[..., None], held, 0)
    most = held.max(axis=-1)
    mean = held.sum(axis=-1) / np.maximum(1, last - 1)
    return np.minimum(stages[held.argmax(axis=-1)], last), mean / np.maximum(1, most)
