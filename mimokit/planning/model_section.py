"""The section `model` alone as an experiment, for who plans before there is data."""

import math

from mimokit.architecture.tokens import tokens_per_item
from mimokit.config import DataConfig, ExperimentConfig, MimoParallelismConfig
from mimokit.config.world_size import resolve


def experiment_of_model(
    model: MimoParallelismConfig, data: DataConfig | None, world_size: int | None
) -> ExperimentConfig:
    """Return an experiment of a section `model`.

    Args:
        data: the section of the same experiment. None: one micro-batch of as few samples as all
            replicas share equally, whose samples have one item of every encoder.
        world_size: ranks of the world; None: as many as the modules need.
    """
    return ExperimentConfig(model=model, data=data or _smallest(model, world_size), name="model")


def _smallest(model: MimoParallelismConfig, world_size: int | None) -> DataConfig:
    language = model.get_architecture(model.llm_module_name)
    sizes = resolve(model, world_size).sizes
    replicas = {name: module.data_parallel or 1 for name, module in sizes.items()}
    samples, of_language = math.lcm(*replicas.values()), replicas[model.llm_module_name]
    language_name = model.llm_module_name
    encoders = [n for n in model.encoder_module_names if language_name in model.module_topology[n]]
    rows = {name: tokens_per_item(model.get_architecture(name)) for name in encoders}
    words = max(language.vocab_size, 1)
    return DataConfig(
        base_batch_size=samples // of_language,
        seq_length=language.seq_length,
        image_seq_length=0,
        vocab_size=words,
        image_special_token_id=model.special_token_ids[encoders[0]] if encoders else words,
        modality_seq_lengths={name: count for name, count in rows.items() if count},
    )
