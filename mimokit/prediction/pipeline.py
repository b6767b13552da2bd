"""Event simulation of a layout's pipeline, which is more exact than the closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mimokit.planning.pipeline import ORDERS
from mimokit.planning.schedule import (
    Order,
    Schedule,
    SharedOrder,
    StageEdge,
    StageGraph,
    interleaved,
    one_forward_one_backward,
    shared_graph,
    stage_graph,
)
from mimokit.prediction.deployment_modes import crossing_message
from mimokit.prediction.layout import Layout
from mimokit.prediction.module_costs import EncoderCost, LanguageCost, bridge_seconds
from mimokit.prediction.step_time import System
from mimokit.prediction.step_time.pipeline import places
from mimokit.prediction.workload import Workload

if TYPE_CHECKING:
    from mimokit.planning.schedule import Timeline

Times = NDArray[np.float64]

MOST_EVENTS = 200_000
"""Stages times micro-batches above which the closed form is used."""
MOST_CHUNKS = 2_000
"""Stages times chunks times micro-batches, where there are chunks. Scheduling this number takes
about 0.1 s."""


def simulated_passes(
    layout: Layout,
    language: LanguageCost,
    encoders: list[EncoderCost],
    workload: Workload,
    system: System,
) -> float | None:
    """Return the seconds of all forward and backward passes of a step, bridges included.

    None without a pipeline, and where the closed form is as exact or quicker: colocated encoders
    of one stage, interleaved chunks without another module that has stages, a fraction of a
    micro-batch, or more work than `is_small` allows.
    """
    sizes, count = language.sizes, float(language.micro_batches)
    several = has_phases(layout) or (layout.mode == "heterogeneous" and bool(layout.others))
    alone = layout.mode != "colocated" and int(sizes.pipeline) > 1 and int(sizes.virtual) == 1
    if not (several or alone) or not is_small(layout, count) or np.any(sizes.logits_as_layers):
        return None
    return float(timed_pipeline(layout, language, encoders, workload, system).makespan)


def has_phases(layout: Layout) -> bool:
    """Return whether encoders have stages on the ranks of the language model's."""
    others = [sizes for name, sizes in layout.modules.items() if name != layout.language]
    return layout.mode == "colocated" and any(int(sizes.pipeline) > 1 for sizes in others)


def is_small(layout: Layout, micro_batches: float) -> bool:
    """Return whether the pipeline of a layout has whole micro-batches, few enough to simulate."""
    apart = layout.mode != "homogeneous"
    sizes = [
        of_module for name, of_module in layout.modules.items() if apart or name == layout.language
    ]
    chunks = sum(int(of_module.pipeline * of_module.virtual) for of_module in sizes)
    most = MOST_CHUNKS if any(int(of_module.virtual) > 1 for of_module in sizes) else MOST_EVENTS
    return micro_batches == int(micro_batches) and chunks * micro_batches <= most


@dataclass(frozen=True)
class TimedPipeline:
    """The schedule of a layout and the seconds that `simulate` needs.

    Attributes:
        forward, backward: [stages, 1].
        weights: the part of `backward` in gradients of weights, which ZB-H1 has apart.
        transfer: [edges, 1].
    """

    schedule: Schedule
    forward: Times
    backward: Times
    weights: Times
    transfer: Times

    @property
    def makespan(self) -> float:
        """Seconds until the last computation ends."""
        from mimokit.planning.schedule import makespan  # layouts without stages need no clock

        times = self.forward, self.backward, self.transfer
        return float(makespan(self.schedule, *times, weight_gradient=self.weights))

    def timeline(self) -> Timeline:
        """Return when every computation begins and ends."""
        from mimokit.planning.schedule import simulate

        times = self.forward, self.backward, self.transfer
        return simulate(self.schedule, *times, weight_gradient=self.weights)


def timed_pipeline(
    layout: Layout,
    language: LanguageCost,
    encoders: list[EncoderCost],
    workload: Workload,
    system: System,
) -> TimedPipeline:
    """Return the schedule of a layout, in the order of its stages, and its seconds.

    In colocated mode this is the pipeline between the phases of encoders, with these phases where
    an encoder has stages. Chunks of a set of ranks take equal shares of its time.
    """
    if layout.mode == "colocated" and not has_phases(layout):
        encoders = []
    count = int(language.micro_batches)
    graph, order = _program(layout, language, encoders, workload)
    schedule = Schedule(graph, count, order)
    times = _pass_seconds(layout, language, encoders, count)
    forward, backward, weights = (
        _column([of[stage.module][stage.place % len(of[stage.module])] for stage in graph.stages])
        for of in times
    )
    by_name: dict[str, EncoderCost | LanguageCost] = {cost.name: cost for cost in encoders}
    by_name |= {cost.name: cost for cost in (language, *language.decoders)}

    def seconds(edge: StageEdge) -> float:
        sender, to = by_name[edge.modality], graph.stages[edge.destination].module
        if to == sender.name:
            return float(sender.hop)
        receiver = layout.modules[to]
        if edge.index in graph.bridged:
            return float(bridge_seconds(sender, receiver, workload, system) / count)
        return float(crossing_message(sender, receiver, system).seconds)

    sent = _column([seconds(edge) for edge in graph.edges])
    return TimedPipeline(schedule, forward, backward, weights, sent)


def _program(
    layout: Layout, language: LanguageCost, encoders: list[EncoderCost], workload: Workload
) -> tuple[StageGraph, Order]:
    branches = [] if layout.mode == "homogeneous" else [encoder.name for encoder in encoders]
    decoders = [decoder.name for decoder in language.decoders]
    sizes = {name: layout.modules[name] for name in (*branches, layout.language, *decoders)}
    fed = layout.topology
    topology = {name: tuple(to for to in fed[name] if to in sizes) for name in sizes}
    cut = {name: int(own.pipeline) for name, own in sizes.items()}
    chunks = {name: int(own.virtual) for name, own in sizes.items()}
    if layout.mode != "colocated" or not branches:
        graph = stage_graph(topology, cut, chunks)
        return graph, _order(language, any(count > 1 for count in chunks.values()))
    sets = cut[layout.language]
    staged = [name for name in branches if cut[name] > 1]
    graph = shared_graph(topology, list(sizes), sets, chunks, sets, staged)
    at_once = layout.encoder_microbatches or workload.encoder_microbatches
    passes = at_once or int(language.micro_batches)
    return graph, SharedOrder(_order(language, chunks[layout.language] > 1), passes)


def _order(language: LanguageCost, in_chunks: bool) -> Order:
    order = interleaved if in_chunks else one_forward_one_backward
    return order if language.order is None else ORDERS.get(language.order, order)


def _column(seconds: list[float]) -> Times:
    return np.array(seconds, dtype=np.float64)[:, None]


Passes = dict[str, list[float]]
"""Module -> seconds of a micro-batch in a pass of each of its sets of ranks."""


def _pass_seconds(
    layout: Layout, language: LanguageCost, encoders: list[EncoderCost], count: int
) -> tuple[Passes, Passes, Passes]:
    """Return forward, backward and its gradients of weights, of one chunk of a set of ranks.

    Those of encoders inside of a stage come with its backward.
    """
    stages, name = int(language.sizes.pipeline), layout.language
    forward, backward, weights = {}, {}, {}
    for text in (language, *language.decoders):
        stage_times = [text.step.stages[place] for place in places(int(text.sizes.pipeline))]
        forward[text.name] = [float(stage.forward.total) for stage in stage_times]
        backward[text.name] = [float(stage.backward.total) for stage in stage_times]
        weights[text.name] = [float(stage.weights) for stage in stage_times]
    for encoder in encoders:
        depth = int(encoder.sizes.pipeline)
        if layout.mode == "homogeneous":
            for stage in range(stages if depth > 1 else 1):
                forward[name][stage] += float(encoder.forward) / count
                backward[name][stage] += float(encoder.backward) / count
            continue
        forward[encoder.name] = [float(encoder.forward) / count] * depth
        backward[encoder.name] = [float(encoder.backward) / count] * depth
        weights[encoder.name] = [float(encoder.weights) / count] * depth
    for passes in (forward, backward, weights):
        for module, seconds in passes.items():
            chunks = int(layout.modules[module].virtual)
            passes[module] = [each / chunks for each in seconds]
    return forward, backward, weights
