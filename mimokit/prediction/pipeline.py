"""Event simulation of a layout's pipeline, which is more exact than the closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mimokit.planning.pipeline import ORDERS
from mimokit.planning.schedule import (
    Order,
    Schedule,
    Timeline,
    makespan,
    one_forward_one_backward,
    plan_schedule,
    simulate,
    stage_graph,
)
from mimokit.prediction.deployment_modes import crossing_message
from mimokit.prediction.layout import Layout
from mimokit.prediction.module_costs import EncoderCost, LanguageCost
from mimokit.prediction.step_time import System

Times = NDArray[np.float64]

MOST_EVENTS = 200_000
"""Stages times micro-batches above which the closed form is used."""


def simulated_passes(
    layout: Layout, language: LanguageCost, encoders: list[EncoderCost], system: System
) -> float | None:
    """Return the seconds of all forward and backward passes of a step, bridges included.

    None without a pipeline, and if the schedule plan does not cover the layout: interleaved chunks
    of the language model, a fraction of a micro-batch, or more than `MOST_EVENTS`.
    """
    sizes, count = language.sizes, float(language.micro_batches)
    stages = int(sizes.pipeline)
    several = layout.mode == "heterogeneous" and bool(encoders)
    if int(sizes.virtual) > 1 or count != int(count) or (stages == 1 and not several):
        return None
    if layout.mode == "colocated" or stages * count > MOST_EVENTS:
        return None
    pipeline = timed_pipeline(layout, language, encoders, system)
    return float(pipeline.makespan)


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
        times = self.forward, self.backward, self.transfer
        return float(makespan(self.schedule, *times, weight_gradient=self.weights))

    def timeline(self) -> Timeline:
        """Return when every computation begins and ends."""
        times = self.forward, self.backward, self.transfer
        return simulate(self.schedule, *times, weight_gradient=self.weights)


def timed_pipeline(
    layout: Layout, language: LanguageCost, encoders: list[EncoderCost], system: System
) -> TimedPipeline:
    """Return the schedule of a layout, in the order of its stages, and its seconds.

    In colocated mode this is the pipeline between the encoder phases. Of interleaved chunks it is
    the plain pipeline, in which all chunks of a set of ranks are one stage.
    """
    count, stages = int(language.micro_batches), int(language.sizes.pipeline)
    if layout.mode == "colocated":
        encoders = []
    several = layout.mode == "heterogeneous" and bool(encoders)
    forward, backward, weights = _stage_times(layout, language, encoders, count)
    branches = [encoder.name for encoder in encoders] if several else []
    names = [*branches, layout.language]
    topology = {name: (() if name == layout.language else (layout.language,)) for name in names}
    pipelines = {name: int(layout.modules[name].pipeline) for name in names}
    graph = stage_graph(topology, pipelines)
    schedule = plan_schedule(graph, count, _order(language))
    hop = float(language.step.pipeline) / (2 * (count + stages - 1)) if stages > 1 else 0.0
    crossing = [
        hop if edge.modality == layout.language else _crossing(language, encoders, system)
        for edge in graph.edges
    ]
    times = _column(forward), _column(backward), _column(weights), _column(crossing)
    return TimedPipeline(schedule, *times)


def _order(language: LanguageCost) -> Order:
    name = language.order
    if name is None or int(language.sizes.virtual) > 1:
        return one_forward_one_backward
    return ORDERS.get(name, one_forward_one_backward)


def _column(seconds: list[float]) -> Times:
    return np.array(seconds, dtype=np.float64)[:, None]


def _stage_times(
    layout: Layout, language: LanguageCost, encoders: list[EncoderCost], count: int
) -> tuple[list[float], list[float], list[float]]:
    """Return forward, backward and its gradients of weights per stage and micro-batch.

    Encoder stages come first. Those of encoders inside of a stage come with its backward.
    """
    first, middle, last = language.step.stages
    stages = int(language.sizes.pipeline)
    stage_times = [first] + [middle] * max(0, stages - 2) + [last] * (stages > 1)
    forward = [float(stage.forward.total) for stage in stage_times]
    backward = [float(stage.backward.total) for stage in stage_times]
    weights = [float(stage.weights) for stage in stage_times]
    if layout.mode == "homogeneous":
        for encoder in (cost.repeated or cost for cost in encoders):
            for stage in range(stages if int(encoder.sizes.pipeline) > 1 else 1):
                forward[stage] += float(encoder.forward) / count
                backward[stage] += float(encoder.backward) / count
        return forward, backward, weights
    ahead: list[float] = []
    behind: list[float] = []
    apart: list[float] = []
    for encoder in encoders:
        depth = int(encoder.sizes.pipeline)
        ahead += [float(encoder.forward) / count] * depth
        behind += [float(encoder.backward) / count] * depth
        apart += [float(encoder.weights) / count] * depth
    return ahead + forward, behind + backward, apart + weights


def _crossing(language: LanguageCost, encoders: list[EncoderCost], system: System) -> float:
    each = [crossing_message(encoder, language.sizes, system).seconds for encoder in encoders]
    return max(map(float, each))
