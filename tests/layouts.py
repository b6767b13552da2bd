"""Small configs for tests: the digits model in any homogeneous or colocated layout."""

from typing import Any

from mimokit.config import (
    DataConfig,
    ExperimentConfig,
    MimoParallelismConfig,
    ModuleArchitecture,
    ModuleParallelismConfig,
    RuntimeConfig,
)

SAMPLES_PER_MICROBATCH = 8
IMAGE_TOKEN = 16
ENCODER: dict[str, Any] = {
    "num_layers": 1, "hidden_size": 32, "num_attention_heads": 8, "seq_length": 4, "vocab_size": 0,
    "image_size": 8, "patch_size": 4,
}  # fmt: skip
LANGUAGE: dict[str, Any] = {
    "num_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "seq_length": 42, "vocab_size": 16
}  # fmt: skip


def digits_config(
    encoder: tuple[int, int] = (1, 1),
    language: tuple[int, int] = (1, 1),
    num_microbatches: int = 1,
    samples_per_microbatch: int = SAMPLES_PER_MICROBATCH,
    **runtime: object,
) -> ExperimentConfig:
    """Return a finalized config; encoder and language are (tensor_parallel, data_parallel)."""
    mode = "homogeneous" if encoder == language else "colocated"
    model = MimoParallelismConfig(
        llm_module_name="language_module",
        deployment_mode=mode,
        module_parallelisms={
            name: ModuleParallelismConfig(tensor_parallel=tensor, data_parallel=data)
            for name, (tensor, data) in (("images", encoder), ("language_module", language))
        },
        special_token_ids={"images": IMAGE_TOKEN},
        module_architectures={
            "images": ModuleArchitecture(**ENCODER),
            "language_module": ModuleArchitecture(**LANGUAGE),
        },
    )
    config = ExperimentConfig(
        model=model,
        data=DataConfig(
            base_batch_size=samples_per_microbatch // language[1],
            num_microbatches=num_microbatches,
            seq_length=42,
            image_seq_length=32,
            vocab_size=16,
            image_special_token_id=IMAGE_TOKEN,
            dataset_size=4096,
        ),
        runtime=RuntimeConfig(**{"num_iterations": 3, **runtime}),  # type: ignore[arg-type]
        name=f"tp{encoder[0]}dp{encoder[1]}_tp{language[0]}dp{language[1]}",
    )
    config.model.finalize(encoder[0] * encoder[1])
    return config


def two_microbatches() -> tuple[ExperimentConfig, ExperimentConfig]:
    """Return a fan-in on shared ranks, and encoder and language model on separate ranks."""
    colocated = digits_config((1, 2), (2, 1), num_microbatches=2)
    apart = digits_config((1, 1), (1, 1), num_microbatches=2).with_layout(
        "heterogeneous",
        images={"data_parallel": 1},
        language_module={"tensor_parallel": 2, "data_parallel": 1},
    )
    return colocated, apart
