"""Event simulation of a layout's pipeline, which is more exact than the closed form."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mimokit.planning.schedule import Schedule, makespan, plan_schedule, stage_graph
from mimokit.prediction.layout import Layout
from mimokit.prediction.module_costs import EncoderCost, LanguageCost
from mimokit.prediction.step_time import System
from mimokit.prediction.step_time.collectives import send

Times = NDArray[np.float64]

MOST_EVENTS = 200_000
"""Stages times micro-batches above which the closed form is used."""


def simulated_passes(
    layout: Layout, language: LanguageCost, encoders: list[EncoderCost], system: System
) -> float | None:
    """Return the seconds of all forward and backward passes of a step, bridges included.

    None without a pipeline, and if the schedule plan does not cover the layout: interleaved chunks,
    a fraction of a micro-batch, or more than `MOST_EVENTS`.
    """
    sizes, count = language.sizes, float(language.micro_batches)
    stages = int(sizes.pipeline)
    several = layout.mode == "heterogeneous" and bool(encoders)
    if int(sizes.virtual) > 1 or count != int(count) or (stages == 1 and not several):
        return None
    if layout.mode == "colocated" or stages * count > MOST_EVENTS:
        return None
    pipeline = timed_pipeline(layout, language, encoders, system)
    return float(makespan(*pipeline))


def timed_pipeline(
    layout: Layout, language: LanguageCost, encoders: list[EncoderCost], system: System
) -> tuple[Schedule, Times, Times, Times]:
    """Return the 1F1B schedule of a layout and the seconds that `simulate` needs.

    The seconds are those of forward [stages, 1], backward [stages, 1] and transfers [edges, 1]. In
    colocated mode this is the pipeline between the encoder phases.
    """
    count, stages = int(language.micro_batches), int(language.sizes.pipeline)
    if layout.mode == "colocated":
        encoders = []
    several = layout.mode == "heterogeneous" and bool(encoders)
    forward, backward = _stage_times(layout, language, encoders, count)
    branches = [encoder.name for encoder in encoders] if several else []
    names = [*branches, layout.language]
    topology = {name: (() if name == layout.language else (layout.language,)) for name in names}
    pipelines = {name: int(layout.modules[name].pipeline) for name in names}
    graph = stage_graph(topology, pipelines)
    schedule = plan_schedule(graph, count)
    hop = float(language.step.pipeline) / (2 * (count + stages - 1)) if stages > 1 else 0.0
    crossing = [
        hop if edge.modality == layout.language else _crossing(language, encoders, system)
        for edge in graph.edges
    ]
    return schedule, _column(forward), _column(backward), _column(crossing)


def _column(seconds: list[float]) -> Times:
    return np.array(seconds, dtype=np.float64)[:, None]


def _stage_times(
    layout: Layout, language: LanguageCost, encoders: list[EncoderCost], count: int
) -> tuple[list[float], list[float]]:
    """Return forward and backward per stage and micro-batch, encoder stages first."""
    first, middle, last = language.step.stages
    stages = int(language.sizes.pipeline)
    stage_times = [first] + [middle] * max(0, stages - 2) + [last] * (stages > 1)
    forward = [float(stage.forward.total) for stage in stage_times]
    backward = [float(stage.backward.total) for stage in stage_times]
    if layout.mode == "homogeneous":
        for encoder in (cost.repeated or cost for cost in encoders):
            for stage in range(stages if int(encoder.sizes.pipeline) > 1 else 1):
                forward[stage] += float(encoder.forward) / count
                backward[stage] += float(encoder.backward) / count
        return forward, backward
    ahead: list[float] = []
    behind: list[float] = []
    for encoder in encoders:
        depth = int(encoder.sizes.pipeline)
        ahead += [float(encoder.forward) / count] * depth
        behind += [float(encoder.backward) / count] * depth
    return ahead + forward, behind + backward


def _crossing(language: LanguageCost, encoders: list[EncoderCost], system: System) -> float:
    samples = float(language.sizes.micro_batch * language.sizes.data)
    each = [
        encoder.sample_bytes * samples / max(float(encoder.sizes.data), float(language.sizes.data))
        for encoder in encoders
    ]
    return float(send(system.connected, max(each), system.hardware.domain_ranks))
