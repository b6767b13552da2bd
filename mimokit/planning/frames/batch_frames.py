"""The frames that the replicas of a vision encoder read, where a config says how many there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mimokit.config import ExperimentConfig, ModalityPresence
from mimokit.config.runtime import BALANCED, FRAME_PARALLEL
from mimokit.planning.types import LayoutPlan
from mimokit.planning.unplannable import vision_geometry

if TYPE_CHECKING:
    from mimokit.planning.frames.forecast import FrameForecast

MOST_SAMPLES = 2**18
"""Of a micro-batch over all replicas, whose frames are counted one by one."""


@dataclass(frozen=True)
class BatchFrames:
    """The frames of one micro-batch, and what sharing them over the replicas saves.

    Attributes:
        ranks: the ranks of every replica, which encode the same frames.
        counts: for each replica, the frames of its samples.
        patches: of one frame.
        shared: whether runs share the frames, see `runtime.patch_type`.
        forecast: what that does to the micro-batch; None if no time can be estimated.
        unknown: why not, as a sentence; empty otherwise.
    """

    encoder: str
    ranks: tuple[tuple[int, ...], ...]
    counts: tuple[tuple[int, ...], ...]
    patches: int
    shared: bool = False
    forecast: FrameForecast | None = None
    unknown: str = ""

    @property
    def frames(self) -> tuple[int, ...]:
        """[replicas], frames that each reads."""
        return tuple(map(sum, self.counts))

    @property
    def patches_read(self) -> list[list[int]]:
        """For each replica, the patches of every frame that it reads."""
        return [[self.patches] * frames for frames in self.frames]


def says_frames(config: ExperimentConfig) -> bool:
    """Return whether a config says how many frames samples have, or wants them to be shared."""
    return bool(
        config.data.modality_frames
        or FRAME_PARALLEL in config.runtime.patch_type
        or any(name in config.data.modality_presence for name in vision_encoders(config))
    )


def vision_encoders(config: ExperimentConfig) -> list[str]:
    """Return the modules that encode images of known sizes."""
    return [name for name in config.model.encoder_module_names if vision_geometry(config, name)]


def batch_frames(config: ExperimentConfig, plan: LayoutPlan) -> tuple[BatchFrames, ...]:
    """Return the frames of each vision encoder in its first micro-batch that has any.

    An encoder without `data.modality_frames` has as many in each sample as its tokens have room
    for, none where `data.modality_presence` says so. Images of any size count as the largest.
    There are none of a micro-batch of more than 262,144 samples.
    """
    if plan.batch.samples_per_microbatch > MOST_SAMPLES:
        return ()
    return tuple(encoder_frames(config, plan, name) for name in encoders_with_frames(config))


def encoders_with_frames(config: ExperimentConfig) -> list[str]:
    """Return the vision encoders about whose frames a config says something."""
    return [
        name
        for name in vision_encoders(config)
        if name in config.data.modality_frames
        or name in config.data.modality_presence
        or FRAME_PARALLEL in config.runtime.patch_type
    ]


def encoder_frames(config: ExperimentConfig, plan: LayoutPlan, name: str) -> BatchFrames:
    """Return the frames of one vision encoder; see `batch_frames`."""
    data, ranks = config.data, plan.modules[name]
    geometry = vision_geometry(config, name)
    assert geometry is not None, "it is one of the vision encoders"
    most = config.tokens_of(name) // geometry.tokens
    spans = [plan.batch.modules[name].samples[ranks.rank(dp=r)] for r in range(ranks.data_parallel)]

    def frames(microbatch: int, sample: int) -> int:
        stated = data.frames_of(name, microbatch, sample)
        present = data.is_present(name, microbatch, sample)
        return (most if present else 0) if stated is None else stated

    presence = data.modality_presence.get(name, ModalityPresence())
    first = min(presence.first_microbatch, plan.batch.num_microbatches - 1)
    each = [frames(first, s) for s in range(plan.batch.samples_per_microbatch)]
    if config.runtime.sample_order == BALANCED:
        from mimokit.planning.frames import SampleCosts, SampleSizes, order_samples

        works = SampleCosts(config, plan).works([SampleSizes({name: count}) for count in each])
        each = [each[sample] for sample in order_samples(works)]
    counts = tuple(tuple(each[slice(*span)]) for span in spans)
    replicas = ranks.groups(*(name for name in ranks.dimensions if name != "dp"))
    shared = FRAME_PARALLEL in config.runtime.patch_type
    return BatchFrames(name, replicas, counts, geometry.patches, shared)
