"""Predict memory and step time of one layout, and the parts they consist of."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from mimokit.architecture.modules import Model
from mimokit.config.errors import refuse_if_any
from mimokit.config.runtime import DeploymentMode
from mimokit.planning.layout import ConfigSource
from mimokit.planning.replicas import strategies
from mimokit.prediction.band import band_of
from mimokit.prediction.deployment_modes import (
    LayoutCost,
    colocated,
    encoder_alive,
    heterogeneous,
    homogeneous,
)
from mimokit.prediction.layout import Layout, connected
from mimokit.prediction.memory import MemoryLine, total_bytes
from mimokit.prediction.module_costs import (
    EncoderCost,
    LanguageCost,
    encoder_costs,
    language_cost,
)
from mimokit.prediction.peak import peak_of_rank
from mimokit.prediction.pipeline import simulated_passes
from mimokit.prediction.result import Prediction
from mimokit.prediction.room import fit_chance, with_retries
from mimokit.prediction.shared_cores import on_shared_cores
from mimokit.prediction.step_time import Software, System
from mimokit.prediction.step_time.breakdown import PARTS
from mimokit.prediction.task import HardwareSource, PredictionTask, task_of
from mimokit.prediction.validity import check_layout, check_links, check_precision, misplaced
from mimokit.prediction.workload import Workload, language_of, step_flops


def predict(
    model: Model | ConfigSource,
    layout: Layout | None = None,
    workload: Workload | None = None,
    hardware: HardwareSource | None = None,
    *,
    gpu: HardwareSource | None = None,
    software: str | Software | None = None,
    price_per_gpu_hour: float | None = None,
    world_size: int | None = None,
) -> Prediction:
    """Predict the step time and the memory of one layout.

    Plain 1F1B pipelines are simulated event by event. Interleaved and colocated pipelines are
    predicted with a closed form.

    Args:
        model: an experiment: a config, a mapping in the form of a YAML file, the path of one, or
            `preset:NAME`. It has a layout and a workload. Or a model from `load_model` or
            `from_hf`, with `layout` and `workload`.
        gpu: a GPU's name, a hardware file, or a `Hardware`. None takes the GPU of the experiment's
            prediction section, or else the default of `PredictionConfig`.
        software: the training stack; None likewise.
        price_per_gpu_hour: in dollars, for the cost per million tokens; None likewise.
        world_size: ranks of the world, for an experiment that leaves a data_parallel open.

    Raises:
        ConfigError: the experiment is wrong, the layout cannot be built, the price is negative, or
            the hardware, software or precision is unknown.
    """
    return predict_task(
        task_of(
            model,
            layout,
            workload,
            hardware,
            gpu=gpu,
            software=software,
            price_per_gpu_hour=price_per_gpu_hour,
            world_size=world_size,
        )
    )


def predict_task(task: PredictionTask) -> Prediction:
    """Predict the step time and the memory of one layout; raises what `predict` raises."""
    at_once = task.layout.encoder_microbatches
    if at_once is not None:
        task = replace(task, workload=replace(task.workload, encoder_microbatches=at_once))
    model, layout, workload = task.model, task.layout, task.workload
    hardware = task.system.hardware
    check_precision(hardware, workload)
    check_layout(model, layout, workload)
    check_links(hardware, layout.gpus)
    system = replace(task.system, hardware=hardware.with_ranks(layout.gpus))
    task = replace(task, system=system)
    language, encoders = costs_of(model, layout, workload, system)
    cost = _cost_in_mode(layout.mode, language, encoders, workload, system)
    exact = simulated_passes(layout, language, encoders, workload, system)
    if exact is not None:
        closed = float(cost.seconds - cost.update)
        cost = replace(cost, seconds=float(cost.seconds) + (exact - closed))
    cost = on_shared_cores(cost, layout.mode, language, encoders, workload, system)
    cost = with_retries(cost, system)
    seconds = float(cost.seconds)
    band, why = band_of(language_of(model), system)
    tflops = step_flops(model, workload) / seconds / layout.gpus
    return Prediction(
        layout=layout,
        seconds=seconds,
        low=seconds * (1 - band),
        high=seconds * (1 + band),
        parts=_parts(language, cost, seconds),
        memory_table=partial(_memory_table, layout, workload, language, encoders),
        peak_memory=float(cost.memory),
        fit_chance=fit_chance(language, language_of(model).net.layers, float(cost.memory), system),
        capacity=system.hardware.memory_bytes,
        tokens_per_second=workload.tokens / seconds,
        tflops_per_gpu=tflops / 1e12,
        utilisation=tflops / peak_of_rank(system.hardware, workload.precision, layout.gpus),
        dollars_per_million_tokens=_dollars(task, seconds),
        precision=workload.precision,
        exchange_seconds=None
        if task.replicas is None
        else strategies().waiting_seconds_of_replicas(task.replicas, seconds),
        supposed=why,
        work=(task, language, encoders),
    )


def _dollars(task: PredictionTask, seconds: float) -> float | None:
    if task.price_per_gpu_hour is None:
        return None
    hours = seconds * task.layout.gpus / 3600
    return hours * task.price_per_gpu_hour / (task.workload.tokens / 1e6)


def costs_of(
    model: Model, layout: Layout, workload: Workload, system: System
) -> tuple[LanguageCost, list[EncoderCost]]:
    """Return the costs of the language model and of all encoders, in the order of the model.

    Those of decoders are with that of the language model.
    """
    layout = connected(layout, model)
    refuse_if_any(misplaced(model, layout))
    described = model, layout, workload, system
    return language_cost(*described), encoder_costs(*described)


def layout_cost(
    mode: DeploymentMode,
    language: LanguageCost,
    encoders: list[EncoderCost],
    workload: Workload,
    system: System,
) -> LayoutCost:
    """Return the cost of a layout, in closed form."""
    cost = _cost_in_mode(mode, language, encoders, workload, system)
    cost = on_shared_cores(cost, mode, language, encoders, workload, system)
    return with_retries(cost, system)


def _cost_in_mode(
    mode: DeploymentMode,
    language: LanguageCost,
    encoders: list[EncoderCost],
    workload: Workload,
    system: System,
) -> LayoutCost:
    if mode == "homogeneous":
        return homogeneous(language, encoders)
    if mode == "colocated":
        return colocated(language, encoders, workload, system)
    return heterogeneous(language, encoders, system)


def _parts(language: LanguageCost, cost: LayoutCost, seconds: float) -> dict[str, float]:
    parts = dict(zip(PARTS, map(float, language.step.work.parts), strict=True))
    parts["pipeline"] = float(language.step.pipeline)
    parts = {name: value * float(cost.slower) for name, value in parts.items()}
    for name in ("encoder", "bridge", "update"):
        parts[name] = float(np.asarray(getattr(cost, name)))
    rest = seconds - sum(parts.values())
    parts["bubble"] = max(0.0, rest)
    for name in ("pipeline", "bridge"):  # sends that the simulated pipeline hides
        hidden = min(parts[name], max(0.0, -rest))
        parts[name] -= hidden
        rest += hidden
    return parts


def _memory_table(
    layout: Layout, workload: Workload, language: LanguageCost, encoders: list[EncoderCost]
) -> Mapping[str, tuple[MemoryLine, ...]]:
    lines: dict[str, tuple[MemoryLine, ...]] = {}
    encoder_bytes = 0.0
    for encoder in encoders:
        at_once = workload.encoder_microbatches
        alive = float(encoder_alive(layout.mode, language, encoder, encoders, at_once))
        encoder_bytes += float(encoder.memory(alive))
        lines[encoder.name] = encoder.load.memory_lines(0, alive)
    shared = encoder_bytes if layout.mode == "homogeneous" else 0.0
    for cost in (language, *language.decoders):
        stage = _fullest_stage(cost, shared if cost is language else 0.0)
        lines[cost.name] = cost.load.memory_lines(stage, float(cost.held[stage > 0]))
    return lines


def _fullest_stage(cost: LanguageCost, shared: float) -> int:
    """Return the stage with the most memory, where encoders have `shared` bytes of the first."""
    first = float(total_bytes(cost.first)) + shared
    return 0 if first >= float(total_bytes(cost.last)) else int(cost.sizes.pipeline) - 1
