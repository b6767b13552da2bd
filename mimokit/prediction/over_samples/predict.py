"""Predict the steps of drawn global batches of one layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mimokit.architecture.encoders import VisionEncoder
from mimokit.architecture.modules import Model
from mimokit.config.errors import Problem, refuse_if_any
from mimokit.planning.layout import ConfigSource
from mimokit.prediction.layout import Layout
from mimokit.prediction.over_samples.loads import (
    BatchLoads,
    Replicas,
    check_divisible,
    drawn_batches,
)
from mimokit.prediction.over_samples.memory import largest_memory
from mimokit.prediction.over_samples.passes import passes_of, work_of
from mimokit.prediction.over_samples.policy import POLICIES, Policy
from mimokit.prediction.over_samples.result import (
    HOURS,
    Floats,
    PolicyPrediction,
    SamplesPrediction,
    lost_share,
)
from mimokit.prediction.over_samples.tables import language_seconds
from mimokit.prediction.prediction import costs_of, predict_task
from mimokit.prediction.sample_loads import SampleLoads, check_row, loads_of, with_means
from mimokit.prediction.step_time import Software
from mimokit.prediction.task import HardwareSource, PredictionTask, task_of
from mimokit.prediction.workload import Workload, branches_of
from mimokit.workload.mix import SampleMix

BATCHES = 64
MOST_SAMPLES = 2**19
"""Drawn in all, from which on there are fewer batches: large batches differ less."""
FEWEST_BATCHES = 4


def predict_over_samples(
    model: Model | ConfigSource,
    layout: Layout | None = None,
    workload: Workload | None = None,
    hardware: HardwareSource | None = None,
    *,
    policies: Sequence[Policy] | None = None,
    batches: int | None = None,
    seed: int = 0,
    gpu: HardwareSource | None = None,
    software: str | Software | None = None,
    price_per_gpu_hour: float | None = None,
    world_size: int | None = None,
) -> SamplesPrediction:
    """Predict steps of drawn global batches: each ends with its slowest rank.

    Arguments are those of `predict`; the experiment has `data.workload`, or the workload a `mix`.

    Args:
        policies: what is done with the samples before ranks compute them. None: `POLICIES`, and
            without text-only samples, where there are some.
        batches: drawn for each policy, the same for all layouts of equal global batches. None:
            `BATCHES`, fewer of more than 8,192 samples each.

    Raises:
        ConfigError: as `predict`; there is no mix, or it does not fit the model.
    """
    task = task_of(
        model,
        layout,
        workload,
        hardware,
        gpu=gpu,
        software=software,
        price_per_gpu_hour=price_per_gpu_hour,
        world_size=world_size,
    )
    return predict_samples(task, policies, batches, seed)


def predict_samples(
    task: PredictionTask,
    policies: Sequence[Policy] | None = None,
    batches: int | None = None,
    seed: int = 0,
) -> SamplesPrediction:
    """Predict the steps of a task; see `predict_over_samples`."""
    mix, task = _with_means(task)
    hardware = task.system.hardware.with_ranks(task.layout.gpus)
    task = replace(task, system=replace(task.system, hardware=hardware))
    loads, replicas = loads_of(mix, task.model, task.workload), replicas_of(task)
    check_divisible(replicas)
    batches = batches or batches_of(replicas)
    predicted = predict_task(task)
    costs = costs_of(task.model, task.layout, task.workload, task.system)
    padded = language_seconds(task, None, None)
    works, memory = [work_of(task, _means(task, replicas), padded)], []
    if policies is None:
        further = loads.text_only.any() and not loads.text_only.all()
        policies = (*POLICIES, *([Policy(text_only=False)] if further else []))
    for policy in policies:
        check_row(policy.packing, loads, mix)
        chosen = loads if policy.text_only else _with_more(loads, mix)
        drawn = drawn_batches(chosen, replicas, policy, batches, seed)
        works += [work_of(task, each, padded) for each in (drawn, drawn.evened())]
        memory.append(largest_memory(task, drawn, *costs))
    (mean,), *passes = passes_of(task, works, costs, replicas.groups)
    # What a step has beside its passes, and what the closed forms know better, stays.
    seconds = [predicted.seconds + each - mean for each in passes]
    answers = [
        PolicyPrediction(policy, known, even, work, _dollars(task, known, even), most)
        for policy, known, even, work, most in zip(
            policies, seconds[::2], seconds[1::2], works[1::2], memory, strict=True
        )
    ]
    return SamplesPrediction(
        task.layout,
        predicted.seconds,
        replicas.of_step,
        mix.source,
        tuple(answers),
        predicted.capacity,
    )


def _dollars(task: PredictionTask, seconds: Floats, even: Floats) -> float | None:
    price = task.price_per_gpu_hour
    return None if price is None else lost_share(seconds, even) * price * task.layout.gpus * HOURS


def batches_of(replicas: Replicas) -> int:
    """Return how many global batches are drawn where nothing else is asked for."""
    return max(min(BATCHES, MOST_SAMPLES // replicas.of_step), FEWEST_BATCHES)


def replicas_of(task: PredictionTask) -> Replicas:
    """Return the replicas of a task's modules that read samples."""
    layout = task.layout
    sizes = layout.modules[layout.language]
    encoders: dict[str, int] = {}
    for branch in branches_of(task.model):
        own = sizes if layout.mode == "homogeneous" else layout.modules[branch.name]
        encoders[branch.name] = int(own.data)
    samples = int(sizes.data) * int(sizes.micro_batch)
    count = task.workload.global_batch_size // samples
    images = (
        each.name for each in branches_of(task.model) if isinstance(each.encoder, VisionEncoder)
    )
    return Replicas(encoders, int(sizes.data), int(count), samples, frozenset(images))


def _with_means(task: PredictionTask) -> tuple[SampleMix, PredictionTask]:
    """Return the mix of a task, and the task with the mean sample of it as every sample."""
    mix = task.workload.mix
    if mix is None:
        sentence = (
            "Prediction over samples: nothing says what samples are made of; give data.workload in "
            "the experiment, or a workload with a mix (mimokit.measure)."
        )
        refuse_if_any([Problem("data", "workload", None, sentence)])
    assert mix is not None
    workload = with_means(task.workload, mix, task.model)
    return mix, replace(task, workload=workload)


def _with_more(loads: SampleLoads, mix: SampleMix) -> SampleLoads:
    kept = loads.without_text
    if not len(kept.tokens):
        sentence = f"Workload '{mix.source}': all of its samples have nothing but text; keep them."
        refuse_if_any([Problem("data", "workload", mix.source, sentence)])
    return kept


def _means(task: PredictionTask, replicas: Replicas) -> BatchLoads:
    counts: Mapping[str, int] = replicas.encoders
    items = {
        branch.name: np.full(
            (1, 1, 1),
            task.workload.input_of(branch).count * replicas.samples / counts[branch.name],
        )
        for branch in branches_of(task.model)
    }
    return BatchLoads(items, None, None, replicas.micro_batches)
