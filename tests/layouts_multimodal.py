"""Small configs for tests: three vision encoders and an audio encoder before a language model."""

from collections.abc import Collection, Mapping
from typing import Any

from mimokit.config import (
    DataConfig,
    DeploymentMode,
    ExperimentConfig,
    MimoParallelismConfig,
    ModalityPresence,
    ModuleArchitecture,
    ModuleParallelismConfig,
    RuntimeConfig,
)
from tests.layouts import SAMPLES_PER_MICROBATCH

LANGUAGE = "language_module"
SPECIAL_TOKENS = {"clip": 16, "dino": 17, "audio": 18, "qwen": 19, "words": 20}
ROOM = {"clip": 8, "dino": 8, "audio": 12, "qwen": 12, "words": 12}
MROPE_SECTION = [2, 3, 3]
PRESENCE = {
    # Absent from the second micro-batch of two, and from every third sample of the others.
    "audio": ModalityPresence(microbatches=[True, False], samples=[True, True, False]),
    # Absent from whole replicas: the second half of the batch.
    "dino": ModalityPresence(samples=[True, False, True, True, False, False, False, False]),
}
SMALL: dict[str, Any] = {
    "num_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "vocab_size": 0,
}
SQUARE = {**SMALL, "seq_length": 16, "image_size": 16, "patch_size": 4, "merge_size": 2}
NETWORKS: dict[str, dict[str, Any]] = {
    "clip": {**SMALL, "seq_length": 4, "image_size": 8, "patch_size": 4, "class_token": True},
    "dino": {**SQUARE, "class_token": True, "num_registers": 2},
    "qwen": {**SQUARE, "temporal_patch_size": 2, "any_image_size": True},
    "words": {**SMALL, "seq_length": 12, "vocab_size": 16, "modal_type": "text"},
    "audio": {**SMALL, "seq_length": 24, "mel_bins": 20, "merge_size": 4},
    LANGUAGE: {**SMALL, "num_layers": 2, "hidden_size": 64, "seq_length": 48, "vocab_size": 16},
}
Sizes = tuple[int, int]


def architectures(**fields: Any) -> dict[str, ModuleArchitecture]:
    """Return the networks; fields are those of the language model."""
    networks = {**NETWORKS, LANGUAGE: {**NETWORKS[LANGUAGE], **fields}}
    return {name: ModuleArchitecture(**own) for name, own in networks.items()}


def multimodal_config(
    sizes: Mapping[str, Sizes],
    mode: DeploymentMode,
    *,
    num_microbatches: int = 1,
    frozen: Collection[str] = (),
    tied: bool = False,
    three_axes: bool = False,
    presence: Mapping[str, ModalityPresence] | None = None,
    **runtime: Any,
) -> ExperimentConfig:
    """Return a finalized config; sizes are (tensor_parallel, data_parallel) of each module."""
    networks = architectures(
        tied_embeddings=tied, mrope_section=MROPE_SECTION if three_axes else None
    )
    encoders = [name for name in sizes if name != LANGUAGE]
    model = MimoParallelismConfig(
        llm_module_name=LANGUAGE,
        deployment_mode=mode,
        module_parallelisms={
            name: ModuleParallelismConfig(tensor_parallel=tensor, data_parallel=data)
            for name, (tensor, data) in sizes.items()
        },
        special_token_ids={name: SPECIAL_TOKENS[name] for name in encoders},
        module_architectures={
            name: networks[name].model_copy(update={"frozen": name in frozen}) for name in sizes
        },
    )
    config = ExperimentConfig(
        model=model,
        data=DataConfig(
            base_batch_size=SAMPLES_PER_MICROBATCH // sizes[LANGUAGE][1],
            num_microbatches=num_microbatches,
            seq_length=48,
            image_seq_length=0,
            vocab_size=16,
            image_special_token_id=SPECIAL_TOKENS[encoders[0]],
            modality_seq_lengths={name: ROOM[name] for name in encoders},
            modality_presence={n: p for n, p in (presence or {}).items() if n in encoders},
        ),
        runtime=RuntimeConfig(**{"num_iterations": 3, **runtime}),
        name="multimodal",
    )
    tensor, data = sizes[LANGUAGE]
    config.model.finalize(tensor * data)
    return config
