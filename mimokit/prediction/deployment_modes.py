"""Step time and memory of a layout in each deployment mode, combined from its modules' costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from mimokit.config.runtime import GPIPE, ZERO_BUBBLE, DeploymentMode, PipelineOrder
from mimokit.config.sizes import Numbers, ParallelSizes
from mimokit.prediction.layout import Edges, around, heaviest
from mimokit.prediction.memory import micro_batches_through, total_bytes
from mimokit.prediction.module_costs import EncoderCost, LanguageCost, bridge_seconds
from mimokit.prediction.step_time import System
from mimokit.prediction.step_time.collectives import TimedMessage, sent
from mimokit.prediction.step_time.pipeline import slowest_and_once
from mimokit.prediction.workload import Workload


@dataclass(frozen=True)
class LayoutCost:
    """Step time and memory of a layout.

    Attributes:
        memory: bytes of the fullest rank.
        bubble: the part in which the busiest stage waits.
        slower: by what factor ranks that share cores slow each other down.
    """

    seconds: Numbers
    memory: Numbers
    encoder: Numbers
    bridge: Numbers
    bubble: Numbers
    update: Numbers
    slower: Numbers = 1.0


def homogeneous(language: LanguageCost, encoders: Sequence[EncoderCost]) -> LayoutCost:
    """Return the cost with encoders on the language model's ranks and in its pipeline.

    An encoder with one stage runs in the first stage of the language model. An encoder with the
    same number of stages is spread over all of them.
    """
    sizes, count, step = language.sizes, language.micro_batches, language.step
    first, middle, last = (stage.total for stage in step.stages)
    ahead, everywhere = added_seconds(encoders, count)
    slowest, once = slowest_and_once(
        first + ahead + everywhere, middle + everywhere, last + everywhere, sizes.pipeline
    )
    alone, _ = language.slowest_and_once
    bubble = (once - slowest) / sizes.virtual * step.waiting + language.last_round(count)
    update = language.update + sum((encoder.update for encoder in encoders), np.float64(0))
    extra = _encoder_bytes("homogeneous", language, encoders)
    memory = np.maximum(total_bytes(language.first) + extra, total_bytes(language.last))
    passes = slowest * count + bubble + step.pipeline
    return LayoutCost(
        passes + update, memory, (slowest - alone) * count, 0.0 * passes, bubble, update
    )


def encoder_alive(
    mode: str,
    language: LanguageCost,
    encoder: EncoderCost,
    encoders: Sequence[EncoderCost],
    at_once: Numbers | None = None,
) -> Numbers:
    """Return the number of an encoder's micro-batches whose activations are stored at once.

    In colocated mode modules run one after the other: these are the micro-batches for which the
    encoder runs at once (None: all of a step). Otherwise they are those in flight in the language
    model's stages. In heterogeneous mode they are those in flight between the encoder's first stage
    and the end of the longest path: each branch starts as early as the longest. Gradients of
    weights that come later come the later the more stages are ahead.
    """
    if mode == "colocated":
        return encoder.micro_batches / _passes(language, at_once)
    count = language.micro_batches
    through = micro_batches_through(language.sizes, count, language.order)
    if mode == "homogeneous":
        return through
    if language.order == GPIPE:
        return encoder.micro_batches
    ahead, behind = in_flight_around(language, encoders)[encoder.name]
    held = micro_batches_through(encoder.sizes, count) + behind
    if language.order == ZERO_BUBBLE and encoder.trained:
        held = held + ahead
    return encoder.micro_batches * np.minimum(count, held) / count


def in_flight_around(
    language: LanguageCost, encoders: Sequence[EncoderCost]
) -> dict[str, tuple[Numbers, Numbers]]:
    """Return module -> micro-batches in flight before it and behind it, on the longest path."""
    modules: tuple[EncoderCost | LanguageCost, ...] = (*encoders, language, *language.decoders)
    count = language.micro_batches
    through = {module.name: micro_batches_through(module.sizes, count) for module in modules}
    return around(language.topology, through)


def _passes(language: LanguageCost, at_once: Numbers | None) -> Numbers:
    """Return how often in a step encoders run before the language model does."""
    count = language.micro_batches
    return 1.0 if at_once is None else np.maximum(1.0, np.ceil(count / at_once))


def _encoder_bytes(
    mode: str,
    language: LanguageCost,
    encoders: Sequence[EncoderCost],
    at_once: Numbers | None = None,
) -> Numbers:
    return sum(
        (each.memory(encoder_alive(mode, language, each, encoders, at_once)) for each in encoders),
        np.float64(0),
    )


def added_seconds(encoders: Sequence[EncoderCost], count: Numbers) -> tuple[Numbers, Numbers]:
    """Return what encoders add per micro-batch to the first stage only, and to every stage."""
    ahead: Numbers = np.float64(0)
    everywhere: Numbers = np.float64(0)
    for encoder in encoders:
        each = encoder.seconds / count
        spread = np.greater(encoder.sizes.pipeline, 1)
        ahead = ahead + np.where(spread, 0.0, each)
        everywhere = everywhere + np.where(spread, each, 0.0)
    return ahead, everywhere


def colocated(
    language: LanguageCost,
    encoders: Sequence[EncoderCost],
    workload: Workload,
    system: System,
    at_once: Numbers | None = None,
) -> LayoutCost:
    """Return the cost of three phases, one after the other, on the same ranks.

    Encoders run forward over all local micro-batches, or as many as the workload says, and store
    their activations. Then the language model runs, then encoders run backward. No phase overlaps
    another (arXiv 2605.27678), so that a pipeline fills and drains every time.
    """
    at_once = workload.encoder_microbatches if at_once is None else at_once
    encoding, bridge, encoders_update = _phases(language, encoders, workload, system, at_once)
    waits = _waits(language, language, at_once)
    update = language.update + encoders_update
    memory = sum(memory_together(language, encoders, at_once))
    total = encoding + bridge + language.step.work.total + language.step.pipeline + waits + update
    return LayoutCost(total, memory, encoding, bridge, waits + 0 * total, update)


def _phases(
    language: LanguageCost,
    encoders: Sequence[EncoderCost],
    workload: Workload,
    system: System,
    at_once: Numbers | None,
) -> tuple[Numbers, Numbers, Numbers]:
    """Return the seconds of encoders' phases, of bridges to them, and of the encoders' update."""
    none: Numbers = np.float64(0)
    bridge = sum(
        (2 * bridge_seconds(encoder, language.sizes, workload, system) for encoder in encoders),
        none,
    )
    waits = sum((_waits(encoder, language, at_once) for encoder in encoders), none)
    seconds = sum((encoder.seconds for encoder in encoders), waits)
    return seconds, bridge, sum((encoder.update for encoder in encoders), none)


def _waits(
    module: LanguageCost | EncoderCost, language: LanguageCost, at_once: Numbers | None
) -> Numbers:
    """Return the seconds that a module's stages wait in all passes of encoders together."""
    count, passes = language.micro_batches, _passes(language, at_once)
    each = count if at_once is None else np.minimum(count, at_once)
    return (passes - 1) * module.waiting(each) + module.waiting(count - (passes - 1) * each)


def crossing_message(
    sender: EncoderCost | LanguageCost, receiver: ParallelSizes, system: System
) -> TimedMessage:
    """Return the send of a module's outputs of a micro-batch to the ranks of another."""
    per_rank = sender.sample_bytes * receiver.micro_batch * receiver.data
    volume = per_rank / np.maximum(sender.sizes.data, receiver.data)
    return sent(system.connected, volume, system.hardware.domain_ranks)


def heterogeneous(
    language: LanguageCost, encoders: Sequence[EncoderCost], system: System
) -> LayoutCost:
    """Return the cost with all modules on separate ranks; see `seconds_of_passes`.

    Parallel branches join at the first stage of the module that they feed. Chunks of an encoder
    shorten its pipeline only where it is the slowest: its first output leaves no earlier.
    """
    count, step = language.micro_batches, language.step
    modules = _passes_of_modules(language, encoders)
    slowest = modules[language.name].busy
    busiest = reduce(np.maximum, (module.busy for module in modules.values()))
    passes = seconds_of_passes(language.topology, modules, count, language.order)
    bubble = (passes - busiest * count) * step.waiting + language.last_round(count)
    crossing = crossing_seconds(language, encoders, system)
    others: tuple[EncoderCost | LanguageCost, ...] = (*encoders, *language.decoders)
    update = reduce(np.maximum, (module.update for module in others), language.update)
    total = busiest * count + bubble + step.pipeline + crossing + update
    memory = np.maximum(*memory_apart(language, encoders))
    waits = (busiest - slowest) * count
    return LayoutCost(total, memory, waits, crossing + 0 * total, bubble + 0 * total, update)


def _passes_of_modules(
    language: LanguageCost, encoders: Sequence[EncoderCost]
) -> dict[str, ModulePass]:
    modules = {each.name: _pass_of_line(each) for each in (language, *language.decoders)}
    return modules | {
        each.name: _pass_of_encoder(each, language.micro_batches) for each in encoders
    }


def _pass_of_line(cost: LanguageCost) -> ModulePass:
    slowest, once = cost.slowest_and_once
    others = (once - slowest) / cost.sizes.virtual
    forward = cost.step.forward / cost.micro_batches
    return ModulePass(slowest, forward, others, slowest + others, cost.sizes.pipeline)


def _pass_of_encoder(cost: EncoderCost, count: Numbers) -> ModulePass:
    busy = cost.seconds / count
    forward, passed = cost.forward / count, busy + cost.passing
    return ModulePass(busy, forward, cost.filling, passed, cost.sizes.pipeline)


def seconds_beside(
    mode: DeploymentMode,
    language: LanguageCost,
    encoders: Sequence[EncoderCost],
    workload: Workload,
    system: System,
) -> Numbers:
    """Return the seconds that other modules add at least to a step of the language model alone.

    It is read for its sizes only. On separate ranks they are those before its first micro-batch,
    unless gradients of weights fill them.
    """
    if mode == "colocated":
        return sum(_phases(language, encoders, workload, system, workload.encoder_microbatches))
    crossing = crossing_seconds(language, encoders, system)
    if language.order == ZERO_BUBBLE:
        return crossing
    modules = _passes_of_modules(language, encoders)
    passed = {name: module.passed for name, module in modules.items()}
    return crossing + around(language.topology, passed)[language.name][0]


def crossing_seconds(
    language: LanguageCost, encoders: Sequence[EncoderCost], system: System
) -> Numbers:
    """Return the seconds of the first outputs, and of the last gradients, between modules.

    They are those on the path of modules on which they take longest.
    """
    modules: dict[str, EncoderCost | LanguageCost] = {each.name: each for each in encoders}
    modules |= {each.name: each for each in (language, *language.decoders)}

    def seconds(source: str, target: str) -> Numbers:
        return 2 * crossing_message(modules[source], modules[target].sizes, system).seconds

    return heaviest(language.topology, dict.fromkeys(modules, 0.0), seconds)


def memory_apart(
    language: LanguageCost, encoders: Sequence[EncoderCost]
) -> tuple[Numbers, Numbers]:
    """Return the bytes of the fullest rank of the language model, and of the others.

    Each rank has one module.
    """
    neighbours = in_flight_around(language, encoders)
    lines = (language, *language.decoders)
    own, *others = [line.memory_between(*neighbours[line.name]) for line in lines]
    for encoder in encoders:
        alive = encoder_alive("heterogeneous", language, encoder, encoders)
        others.append(encoder.memory(alive))
    return own, reduce(np.maximum, others) if others else 0.0


def memory_together(
    language: LanguageCost, encoders: Sequence[EncoderCost], at_once: Numbers | None
) -> tuple[Numbers, Numbers]:
    """Return the bytes of the language model on the fullest rank, and of encoders beside it."""
    return language.memory, _encoder_bytes("colocated", language, encoders, at_once)


@dataclass(frozen=True)
class ModulePass:
    """The seconds of one micro-batch in a module.

    Attributes:
        busy: forward and backward in its slowest stage.
        forward: the part of `busy` in the forward pass.
        others: in its other stages, if it is the slowest module.
        passed: in all stages, of a micro-batch on its way to other modules.
        stages: of its pipeline.
    """

    busy: Numbers
    forward: Numbers
    others: Numbers
    passed: Numbers
    stages: Numbers


def seconds_of_passes(
    edges: Edges, modules: Mapping[str, ModulePass], count: Numbers, order: PipelineOrder | None
) -> Numbers:
    """Return the seconds of `count` micro-batches through a graph of modules.

    They are those of the module for which they are most. Its slowest stage computes all
    micro-batches, after the first has passed all modules before it and until the last has passed
    them back. What is behind it delays it twice: its first backward, as far as the forwards that it
    computes ahead, one for each stage behind it, are done sooner; and its last backwards likewise.
    """
    paths = around(edges, {name: module.passed for name, module in modules.items()})
    depths = around(edges, {name: module.stages for name, module in modules.items()})
    most: Numbers = 0.0
    for name, module in modules.items():
        back = module.others + paths[name][1]
        waits = back
        if order != GPIPE:
            forwards = np.minimum(count - 1, module.stages - 1 + depths[name][1])
            first = np.maximum(0.0, back - forwards * module.forward)
            last = np.maximum(0.0, back - forwards * (module.busy - module.forward))
            waits = np.minimum(back, first + last)
        most = np.maximum(most, count * module.busy + paths[name][0] + waits)
    return most
