"""Strips of digits as a rank reads them in training: planned, collated and checked."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.architecture.tokens import tokens_per_item
from mimokit.config import (
    DataConfig,
    ExperimentConfig,
    MimoParallelismConfig,
    ModuleArchitecture,
    ModuleParallelismConfig,
    RuntimeConfig,
)
from mimokit.engine.calibration.single_rank import IMAGE_TOKEN, IMAGES, LANGUAGE, SEED
from mimokit.engine.data.batch import Batch
from mimokit.engine.data.digits import DigitCollate, DigitStrips
from mimokit.engine.data.iterators import iterate_shared_batches
from mimokit.planning.layout import plan

STRIPS = 4096


def batches_of(
    samples: int, language: ModuleArchitecture, images: ModuleArchitecture
) -> Iterator[Batch]:
    """Return what a rank reads where it holds all of the model.

    Args:
        samples: of a batch.
        language: the language model that they are for.
        images: the vision encoder.
    """
    tokens = tokens_per_item(images)
    config = ExperimentConfig(
        model=MimoParallelismConfig(
            llm_module_name=LANGUAGE,
            deployment_mode="homogeneous",
            module_parallelisms={
                IMAGES: ModuleParallelismConfig(data_parallel=1),
                LANGUAGE: ModuleParallelismConfig(data_parallel=1),
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
    collate = DigitCollate(language.seq_length, IMAGE_TOKEN, tokens)
    return iterate_shared_batches(plan(config), config.data, 0, strips, collate, SEED)
