"""A small config that is right, to be made wrong one place at a time."""

from typing import Any

from mimokit.config import ConfigError, ExperimentConfig, Problem
from mimokit.config_files import config_from_mapping

LANGUAGE = "language_module"


def network(**fields: Any) -> dict[str, Any]:
    base = {
        "num_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "seq_length": 32,
        "vocab_size": 0,
    }
    return {**base, **fields}


def sections(
    images: dict[str, Any] | None = None,
    language: dict[str, Any] | None = None,
    schedule: str = "colocated",
) -> dict[str, Any]:
    """Return images TP1 DP4 on the same ranks as a language module TP4 DP1, unless given."""
    return {
        "model": {
            "module_architectures": {
                "images": network(seq_length=16),
                "language_module": network(seq_length=128, vocab_size=1024),
            },
            "module_parallelisms": {
                "images": images or {"tensor_parallel": 1, "data_parallel": 4},
                "language_module": language or {"tensor_parallel": 4, "data_parallel": 1},
            },
            "special_token_ids": {"images": 1024},
            "llm_module_name": "language_module",
            "encoder_module_name": "images",
        },
        "data": {
            "base_batch_size": 8,
            "num_microbatches": 2,
            "seq_length": 128,
            "image_seq_length": 16,
            "vocab_size": 1024,
            "image_special_token_id": 1024,
        },
        "runtime": {"pipeline_schedule": schedule},
    }


def three_encoders() -> dict[str, Any]:
    """Return a CLIP-like, a DINO-like and a Whisper-like encoder before one language module."""
    content = sections({"data_parallel": 4}, {"data_parallel": 4}, "homogeneous")
    model = content["model"]
    model["module_architectures"] = {
        "clip": network(image_size=8, patch_size=4, class_token=True),
        "dino": network(image_size=16, patch_size=4, num_registers=4, class_token=True),
        "audio": network(mel_bins=20, seq_length=24, merge_size=4),
        LANGUAGE: network(seq_length=128, vocab_size=1024, tied_embeddings=True),
    }
    model["module_parallelisms"] = {
        name: {"data_parallel": 4} for name in model["module_architectures"]
    }
    model["special_token_ids"] = {"clip": 1024, "dino": 1025, "audio": 1026}
    model["encoder_module_name"] = "clip"
    content["data"]["modality_seq_lengths"] = {"clip": 16, "dino": 32, "audio": 12}
    content["data"]["modality_presence"] = {
        "audio": {"microbatches": [True, False]},
        "dino": {"samples": [True, True, False]},
    }
    return content


def text_head() -> dict[str, Any]:
    """Return three encoders of which the second reads words."""
    content = three_encoders()
    words = network(vocab_size=1024, seq_length=16, modal_type="text")
    content["model"]["module_architectures"]["dino"] = words
    del content["data"]["modality_presence"]["dino"]
    return content


def put(content: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Set the value at a path with dots between its keys."""
    *keys, last = path.split(".")
    target = content
    for key in keys:
        target = target.setdefault(key, {})
    target[last] = value
    return content


def load(content: dict[str, Any], world_size: int | None = None) -> ExperimentConfig:
    return config_from_mapping(content, world_size=world_size)


def problems(content: dict[str, Any], world_size: int | None = None) -> tuple[Problem, ...]:
    """Return what is wrong with it."""
    try:
        load(content, world_size)
    except ConfigError as error:
        return error.problems
    return ()


def only(found: tuple[Problem, ...]) -> Problem:
    assert len(found) == 1, [problem.sentence for problem in found]
    return found[0]
