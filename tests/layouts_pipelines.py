"""Small configs for tests: encoders on the ranks of a language model that is cut into stages."""

from collections.abc import Collection, Mapping
from typing import Any

from mimokit.config import DeploymentMode, ExperimentConfig
from tests.layouts import SAMPLES_PER_MICROBATCH
from tests.layouts_multimodal import LANGUAGE, Sizes, multimodal_config


def shared_pipeline(
    mode: DeploymentMode,
    language: tuple[int, int, int],
    encoders: Mapping[str, Sizes],
    num_microbatches: int,
    staged: Collection[str] = (),
    **options: Any,
) -> ExperimentConfig:
    """Return a finalized config.

    Args:
        language: (tensor_parallel, pipeline_parallel, data_parallel).
        encoders: (tensor_parallel, data_parallel) of each; in homogeneous mode they have the sizes
            of the language model, whatever is given.
        staged: encoders that have as many stages as the language model, of one layer each.
        options: of `multimodal_config`; layers and chunks of the language model; encoder_chunks of
            encoders in stages; encoder_microbatches and pipeline_order of the runtime;
            context_parallel of the language model, whose sequences are then sharded over tensor
            parallel ranks as well.
    """
    layers, passes = options.pop("layers", 2), options.pop("encoder_microbatches", None)
    contexts, parts = options.pop("context_parallel", 1), options.pop("encoder_chunks", None)
    chunks, order = options.pop("chunks", None), options.pop("pipeline_order", None)
    alone = {**dict.fromkeys(encoders, (1, 1)), LANGUAGE: (1, 1)}
    config = multimodal_config(alone, "homogeneous", num_microbatches=num_microbatches, **options)
    config.data.base_batch_size = SAMPLES_PER_MICROBATCH // language[2]
    config.model.module_architectures[LANGUAGE].num_layers = layers
    names = ("tensor_parallel", "pipeline_parallel", "data_parallel")
    own: dict[str, Any] = dict(zip(names, language, strict=True))
    if contexts > 1:
        own |= {"context_parallel": contexts, "sequence_parallel": language[0] > 1}
    sizes: dict[str, Any] = {LANGUAGE: {**own, "virtual_pipeline_model_parallel_size": chunks}}
    for name, (tensor, data) in encoders.items():
        sizes[name] = own if mode == "homogeneous" else {**own, **_whole(tensor, data)}
        if name in staged:
            in_stages = {
                "pipeline_parallel": language[1],
                "virtual_pipeline_model_parallel_size": parts,
            }
            sizes[name] |= in_stages
            config.model.module_architectures[name].num_layers = language[1] * (parts or 1)
    config = config.with_layout(mode, **sizes)
    config.runtime.encoder_microbatches, config.runtime.pipeline_order = passes, order
    return config


def _whole(tensor: int, data: int) -> dict[str, int]:
    whole: dict[str, Any] = {"tensor_parallel": tensor, "data_parallel": data}
    return {**whole, "pipeline_parallel": 1, "context_parallel": 1, "sequence_parallel": None}
