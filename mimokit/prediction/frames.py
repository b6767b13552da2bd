"""Frames of samples as a user writes them, and what sharing the frames of a micro-batch saves."""

import re
from collections.abc import Sequence
from dataclasses import replace

from mimokit.architecture import VisionEncoder
from mimokit.architecture.from_config import model_of_config
from mimokit.architecture.modules import EncoderBranch
from mimokit.config import ConfigError, ExperimentConfig, Problem
from mimokit.planning.frames import FrameCost, FrameForecast, FrameLinks, forecast_frames
from mimokit.planning.frames.batch_frames import BatchFrames, batch_frames
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.module_costs import encoder_cost, load_of
from mimokit.prediction.step_time.collectives import gathered, members_in_domain
from mimokit.prediction.task import (
    PredictionTask,
    chosen_hardware,
    chosen_software,
    layout_of_config,
    section_of,
    system_of,
    workload_of_config,
)
from mimokit.prediction.validity import check_precision
from mimokit.prediction.workload import EncoderInput, branches_of
from mimokit.units import shown

LEAST_SECONDS = 1e-12
"""Of a frame: so little that nothing is saved by sharing frames that take no time."""


def timed_frames(config: ExperimentConfig, plan: LayoutPlan) -> tuple[BatchFrames, ...]:
    """Return the frames of each vision encoder in a micro-batch, and what sharing them saves."""
    return timed(config, plan, batch_frames(config, plan))


def timed(
    config: ExperimentConfig, plan: LayoutPlan, batches: Sequence[BatchFrames]
) -> tuple[BatchFrames, ...]:
    """Return the frames of encoders with a forecast, or with why none can be made."""
    try:
        task = _task(config, plan.world_size)
        check_precision(task.system.hardware, task.workload)
        model = config.model
        sized = {batch.encoder: model.get_architecture(batch.encoder) for batch in batches}
        return tuple(
            replace(batch, forecast=_forecast(task, batch, sized[batch.encoder].any_image_size))
            for batch in batches
        )
    except ConfigError as error:
        why = f"Encoder times are not estimated: {error.problems[0].sentence}"
        return tuple(replace(batch, unknown=why) for batch in batches)


def _task(config: ExperimentConfig, world_size: int) -> PredictionTask:
    section, workload = section_of(config), workload_of_config(config, world_size)
    hardware = chosen_hardware(None, None, section)
    model = model_of_config(config.model, config.name)
    return PredictionTask(
        model=model,
        layout=layout_of_config(config, world_size),
        workload=workload,
        system=system_of(hardware, chosen_software(None, section, hardware), workload, model),
    )


def _forecast(task: PredictionTask, batch: BatchFrames, as_patches: bool) -> FrameForecast:
    """Return what sharing frames saves.

    Args:
        as_patches: images of any size are, each as often as a patch has frames; others are pixels.
    """
    branch = _branch(task, batch.encoder)
    per_frame, base = frame_seconds(task, batch)
    per_node = max(1, task.system.hardware.domain_ranks // len(batch.ranks[0]))
    stride = (batch.ranks[-1][0] - batch.ranks[0][0]) // max(1, len(batch.ranks) - 1)
    return forecast_frames(
        batch.patches_read,
        FrameCost(per_patch=0.0, per_frame=max(per_frame, LEAST_SECONDS)),
        frame_links(task, branch, len(batch.ranks), stride, as_patches=as_patches),
        base=base,
        ranks_per_node=min(per_node, len(batch.ranks)),
    )


def frame_seconds(task: PredictionTask, batch: BatchFrames) -> tuple[float, float]:
    """Return the seconds of a frame in its encoder, and those of a micro-batch without frames.

    Forward and, if the encoder is trained, backward. A line through the mean and the most frames
    of a replica: small encoders take as long for a few frames as for one.
    """
    mean = max(sum(batch.frames) / len(batch.frames), 1.0)
    most = max(float(max(batch.frames)), 2 * mean if max(batch.frames) <= mean else mean)
    at_mean, at_most = (_seconds(task, batch.encoder, frames) for frames in (mean, most))
    per_frame = max(0.0, (at_most - at_mean) / (most - mean))
    return per_frame, max(0.0, at_mean - mean * per_frame)


def _seconds(task: PredictionTask, encoder: str, frames: float) -> float:
    branch, sizes, workload = _branch(task, encoder), task.layout.modules[encoder], task.workload
    seen = EncoderInput(workload.input_of(branch).length, frames / float(sizes.micro_batch))
    even = replace(workload, inputs={**workload.inputs, encoder: seen})
    cost = encoder_cost(branch, load_of(branch, task.model, sizes, even, task.system), even)
    return float(cost.seconds) / float(cost.micro_batches)


def _branch(task: PredictionTask, encoder: str) -> EncoderBranch:
    return next(branch for branch in branches_of(task.model) if branch.name == encoder)


def frame_links(
    task: PredictionTask,
    branch: EncoderBranch,
    replicas: int,
    stride: int,
    *,
    as_patches: bool = True,
) -> FrameLinks:
    """Return what it costs to send frames between replicas that are so many ranks apart.

    A collective has the latency of the group, and the host launches it.
    """
    hardware, encoder = task.system.connected, branch.encoder
    inside = members_in_domain(hardware, replicas, stride) == replicas
    link = hardware.domain if inside else hardware.network
    share = hardware.efficiency.links if inside else hardware.efficiency.network
    latency = float(gathered(hardware, 0.0, replicas, stride).latency)
    assert isinstance(encoder, VisionEncoder), "frames are those of vision encoders"
    number = 4.0 if task.workload.precision == "fp32" else 2.0
    images = encoder.images
    times = images.frames_per_patch if as_patches else 1
    return FrameLinks(
        bytes_per_second=link.bandwidth * share,
        latency=latency + task.system.software.host_collective,
        input_bytes=number * images.num_channels * times * images.patch_size**2,
        output_bytes=number * encoder.net.hidden,
        trained=branch.name not in task.workload.frozen,
    )


MOST_FRAMES = 1_000_000
BETWEEN_RANKS = "/"


def read_counts(text: str) -> list[list[int]]:
    """Return the frames per sample of every rank; a text without a slash is that of one rank."""
    ranks = []
    for part in text.split(BETWEEN_RANKS):
        words = re.split(r"[\s,;]+", part.strip(" \t\r\n,;[]"))
        wrong = next((word for word in words if not re.fullmatch(r"[0-9]*", word)), None)
        if wrong is not None:
            raise _refused(text, f"{shown(wrong, 24)} is not a number of frames; write 64 1 / 2")
        long = next((word for word in words if len(word) > len(str(MOST_FRAMES))), None)
        if long is not None:
            raise _refused(text, f"{long[:24]} is more than {MOST_FRAMES:,}")
        ranks.append([int(word) for word in words if word])
    total = sum(map(sum, ranks))
    if total > MOST_FRAMES:
        raise _refused(text, f"{total:,} are more than {MOST_FRAMES:,}")
    return ranks


def dealt(samples: Sequence[int], ranks: int) -> list[list[int]]:
    """Return the samples of each rank, contiguous; the first ranks have one more if need be."""
    each, more = divmod(len(samples), ranks)
    ends = [(rank + 1) * each + min(rank + 1, more) for rank in range(ranks)]
    return [list(samples[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


def counts_text(ranks: Sequence[Sequence[int]]) -> str:
    """Return the text that `read_counts` reads."""
    return f" {BETWEEN_RANKS} ".join(" ".join(map(str, samples)) for samples in ranks)


def _refused(value: str, why: str) -> ConfigError:
    sentence = f"The frames of samples, {shown(value)}: {why}."
    return ConfigError([Problem("frames", "counts", value, sentence)])
