"""Layouts for the tests of the plan room."""

from typing import Any

from mimokit.config import ExperimentConfig
from mimokit.config_files import config_from_mapping

Sizes = dict[str, int]


def sizes(tp: int = 1, dp: int | None = 1, cp: int = 1, pp: int = 1, offset: int = 0) -> Sizes:
    found = {"tensor_parallel": tp, "context_parallel": cp, "pipeline_parallel": pp}
    return found | {"rank_offset": offset} | ({} if dp is None else {"data_parallel": dp})


def layout(
    mode: str,
    language: Sizes,
    base_batch_size: int,
    num_microbatches: int = 1,
    *,
    schedule: str | None = None,
    **encoders: Sizes,
) -> ExperimentConfig:
    """Return a config in which sizes divide whatever they are cut into; hidden size 5040."""
    seq_length = 16 * (1 + max(1, len(encoders)))
    network = {
        "num_layers": 60,
        "hidden_size": 5040,
        "num_attention_heads": 5040,
        "kv_channels": 2,
        "seq_length": seq_length,
        "vocab_size": 5040,
    }
    modules = {**encoders, "language": language}
    content: dict[str, Any] = {
        "model": {
            "module_architectures": {
                **{name: network | {"seq_length": 16} for name in encoders},
                "language": dict(network),
            },
            "module_parallelisms": modules,
            "special_token_ids": {name: 9000 + i for i, name in enumerate(encoders)},
            "llm_module_name": "language",
            "deployment_mode": mode,
        },
        "data": {
            "base_batch_size": base_batch_size,
            "num_microbatches": num_microbatches,
            "seq_length": seq_length,
            "image_seq_length": 16,
            "vocab_size": 5040,
            "image_special_token_id": 9000,
        },
        "runtime": {"pipeline_schedule": schedule},
    }
    return config_from_mapping(content)
