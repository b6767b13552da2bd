"""Stages of one rank, with process groups of one so that nothing is communicated, and its data."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from mimokit.architecture.tokens import tokens_per_item
from mimokit.config import (
    DataConfig,
    ExperimentConfig,
    MimoParallelismConfig,
    ModuleArchitecture,
    ModuleParallelismConfig,
    RuntimeConfig,
)
from mimokit.engine.data.batch import Batch
from mimokit.engine.data.digits import DigitCollate, DigitStrips
from mimokit.engine.data.iterators import iterate_batches
from mimokit.engine.device import group_timeout, rank_device
from mimokit.engine.megatron import (
    MimoModelConfig,
    ProcessGroupCollection,
    ensure_memory_buffer,
)
from mimokit.engine.models.language import language_model_spec
from mimokit.engine.models.provider import SeededMimoModel, inject_process_groups
from mimokit.engine.models.rng import seed_modules
from mimokit.engine.models.specs import encoder_kind, encoder_spec
from mimokit.engine.models.transformer import ModuleBuild
from mimokit.engine.parallel.data_parallel import wrap_data_parallel
from mimokit.engine.parallel.grids import process_groups
from mimokit.engine.pipeline.stages import EncoderStage, LanguageStage
from mimokit.planning.execution import ModuleExecution
from mimokit.planning.layout import plan_layout

LANGUAGE, IMAGES = "language_module", "images"
IMAGE_TOKEN = 16
SEED = 1234


@dataclass(frozen=True)
class Alone:
    """The groups of one rank, in place of a grid."""

    group: dist.ProcessGroup

    @classmethod
    def create(cls) -> Alone:
        """Create a separate group for each rank. Collective over the world."""
        ensure_memory_buffer()
        seed_modules(SEED, {LANGUAGE: 0, IMAGES: 0})
        group, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
            [[rank] for rank in range(dist.get_world_size())], timeout=group_timeout()
        )
        return cls(group)

    def get_pg(self, dimensions: str | list[str]) -> dist.ProcessGroup:
        """Return the group over dimensions, as `HyperCommGrid` does."""
        return self.group

    @property
    def collection(self) -> ProcessGroupCollection:
        """The groups in the form Megatron's modules take."""
        return process_groups(self, self, embedding=None)


def language_stage(architecture: ModuleArchitecture, alone: Alone) -> LanguageStage:
    """Build a whole language model that receives rows of images over edge 0."""
    groups = alone.collection
    build = ModuleBuild(LANGUAGE, ModuleExecution(), architecture, architecture)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Megatron's classes say that they are new
        model = SeededMimoModel(
            MimoModelConfig(
                language_model_spec=inject_process_groups(language_model_spec(build), groups),
                modality_submodules_spec={},
                special_token_ids={IMAGES: IMAGE_TOKEN},
            ),
            language_module_name=LANGUAGE,
            seed=SEED,
        ).to(rank_device())
    config = model.language_model.config
    wrapped = wrap_data_parallel(model.language_model, config, build.execution, groups)
    model.language_model = wrapped
    return LanguageStage(
        LANGUAGE, wrapped, True, True, model, {0: IMAGES}, (), {}, three_axes=False
    )


def vision_stage(
    architecture: ModuleArchitecture, language: ModuleArchitecture, alone: Alone
) -> EncoderStage:
    """Build a whole vision encoder with its projector."""
    groups = alone.collection
    torch.manual_seed(SEED)
    build = ModuleBuild(IMAGES, ModuleExecution(), architecture, language)
    spec = encoder_spec(build)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        submodule = spec.module.from_spec(inject_process_groups(spec, groups)).to(rank_device())
    config = next(iter(submodule.encoders.values())).config
    wrapped = wrap_data_parallel(submodule, config, build.execution, groups)
    kind, tokens = encoder_kind(architecture), tokens_per_item(architecture)
    return EncoderStage(IMAGES, wrapped, True, True, kind, tokens)


STRIPS = 4096


def batches_of(
    samples: int, language: ModuleArchitecture, images: ModuleArchitecture
) -> Iterator[Batch]:
    """Return the batches of a rank with the whole model."""
    tokens = tokens_per_item(images)
    config = ExperimentConfig(
        model=MimoParallelismConfig(
            llm_module_name=LANGUAGE,
            deployment_mode="homogeneous",
            module_parallelisms={
                name: ModuleParallelismConfig(data_parallel=1) for name in (IMAGES, LANGUAGE)
            },
            special_token_ids={IMAGES: IMAGE_TOKEN},
            module_architectures={IMAGES: images, LANGUAGE: language},
        ),
        data=DataConfig(
            base_batch_size=samples,
            seq_length=language.seq_length,
            image_seq_length=8 * tokens,
            vocab_size=language.vocab_size,
            image_special_token_id=IMAGE_TOKEN,
            dataset_size=STRIPS,
        ),
        runtime=RuntimeConfig(),
        name="calibration",
    )
    config.model.finalize(1)
    strips = DigitStrips("train", "read", size=STRIPS)
    collate = DigitCollate(language.seq_length, [IMAGE_TOKEN], tokens)
    batches = iterate_batches(plan_layout(config), config.data, 0, strips, collate, SEED)
    assert batches is not None
    return batches
