"""Steps of ranks that share the cores of a host, from the steps that they take on a core each.

A rank that waits leaves its core to the others. So a step takes as long as its longest path, or as
all CPU seconds divided by the cores, whichever is more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from mimokit.config.runtime import DeploymentMode
from mimokit.config.sizes import Numbers
from mimokit.prediction.deployment_modes import LayoutCost, crossing_message
from mimokit.prediction.module_costs import EncoderCost, LanguageCost, bridge_seconds
from mimokit.prediction.step_time import System
from mimokit.prediction.workload import Workload


def on_shared_cores(
    cost: LayoutCost,
    mode: DeploymentMode,
    language: LanguageCost,
    encoders: Sequence[EncoderCost],
    workload: Workload,
    system: System,
) -> LayoutCost:
    """Return the cost of a layout whose ranks share cores; the same where each has a device."""
    hardware = system.hardware
    if hardware.cores is None:
        return cost
    ranks = ranks_of(mode, language, encoders)
    step = hardware.cores.step
    path = cost.seconds + step
    work = step + sum(_cpu_seconds(mode, language, encoders, workload, system)) / ranks
    slower = np.maximum(hardware.ranks_per_core(1), hardware.ranks_per_core(ranks) * work / path)
    parts = {name: slower * getattr(cost, name) for name in ("encoder", "bridge", "bubble")}
    return replace(
        cost, seconds=slower * path, update=slower * (cost.update + step), slower=slower, **parts
    )


def ranks_of(
    mode: DeploymentMode, language: LanguageCost, encoders: Sequence[EncoderCost]
) -> Numbers:
    """Return the ranks of a layout."""
    if mode != "heterogeneous":
        return language.sizes.ranks
    modules: tuple[LanguageCost | EncoderCost, ...] = (language, *language.decoders, *encoders)
    return sum((module.sizes.ranks for module in modules), 0)


def _cpu_seconds(
    mode: DeploymentMode,
    language: LanguageCost,
    encoders: Sequence[EncoderCost],
    workload: Workload,
    system: System,
) -> Iterator[Numbers]:
    for line in (language, *language.decoders):
        sizes, passes = line.sizes, line.micro_batches * line.slowest_and_once[1]
        yield sizes.ranks_per_stage * (passes + sizes.pipeline * line.update)
        yield sizes.ranks_per_stage * _sends(line.hop, line.micro_batches, sizes.pipeline)
    for encoder in encoders:
        sizes, count = encoder.sizes, encoder.micro_batches
        passes = encoder.seconds + count * encoder.others
        yield sizes.ranks_per_stage * (passes + sizes.pipeline * encoder.update)
        yield sizes.ranks_per_stage * _sends(encoder.hop, count, sizes.pipeline)
        if mode == "colocated":
            yield 2 * sizes.ranks * bridge_seconds(encoder, language.sizes, workload, system)
        if mode == "heterogeneous":
            crossing = crossing_message(encoder, language.sizes, system).seconds
            yield language.sizes.ranks_per_stage * _sends(crossing, language.micro_batches, 2)


def _sends(each: Numbers, micro_batches: Numbers, stages: Numbers) -> Numbers:
    return 4 * each * micro_batches * (stages - 1)
