"""Tiny Qwen-VLs that look at digits of different sizes, made by `transformers`."""

import functools
from pathlib import Path
from typing import Any

from mimokit.config import ExperimentConfig
from mimokit.config_files import config_from_mapping
from tests.hugging_face_weights import kept_folder

IMAGE_TOKEN = 20
VOCABULARY = 23
"""No tensor parallel size divides it."""

LANGUAGE = "language_module"
KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")

_TEXT: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 128,
}  # fmt: skip
_VISION: dict[str, Any] = {
    "in_channels": 1, "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2,
    "depth": 4, "num_heads": 4,
}  # fmt: skip
_OF_KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": ({"embed_dim": 48, "hidden_size": 32, "mlp_ratio": 2}, {}),
    "qwen2_5_vl": (
        {"hidden_size": 48, "intermediate_size": 40, "out_hidden_size": 32, "window_size": 8,
         "fullatt_block_indexes": [1]}, {"tie_word_embeddings": True},
    ),
    "qwen3_vl": (
        {"hidden_size": 48, "intermediate_size": 40, "out_hidden_size": 32,
         "num_position_embeddings": 9, "deepstack_visual_indexes": [0, 2]}, {"head_dim": 12},
    ),
}  # fmt: skip
"""What their vision and text configs state beyond the sizes."""


def _classes(kind: str) -> tuple[Any, Any]:
    import transformers

    stem = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[kind]
    model = getattr(transformers, f"{stem}ForConditionalGeneration")
    return getattr(transformers, f"{stem}Config"), model


@functools.cache
def qwen_checkpoint(kind: str, std: float = 0.2) -> Path:
    """Return the directory of a model in fp32, made once per process; all parameters are random."""
    import torch

    vision, text = _OF_KINDS[kind]
    sections = [3, 2, 1] if kind == "qwen3_vl" else [2, 1, 1]
    rotary = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections}
    config, model_class = _classes(kind)
    torch.manual_seed(len(kind))
    model = model_class(
        config(
            vision_config={**_VISION, **vision},
            text_config={**_TEXT, "rope_parameters": rotary, **text},
            image_token_id=IMAGE_TOKEN,
            tie_word_embeddings=text.get("tie_word_embeddings", False),
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std)
    path = kept_folder() / f"{kind}-{std}"
    model.save_pretrained(path)
    return path


def qwen_config(
    kind: str, mode: str, images: dict[str, int], words: dict[str, int], samples: int = 4
) -> ExperimentConfig:
    """Return a config whose modules start from a Qwen-VL and read images of different sizes.

    Args:
        kind: of `KINDS`.
        mode: deployment mode.
        images: parallel sizes of the tower.
        words: of the language model.
        samples: of a step.
    """
    path = str(qwen_checkpoint(kind))
    replicas = words.get("data_parallel", 1)
    return config_from_mapping({
        "model": {
            "deployment_mode": mode,
            "module_parallelisms": {"images": images, LANGUAGE: words},
            "module_architectures": {
                "images": {"weights": path, "image_size": 24, "any_image_size": True},
                LANGUAGE: {"weights": path, "seq_length": 48},
            },
            "special_token_ids": {"images": IMAGE_TOKEN},
        },
        "data": {"base_batch_size": samples // replicas, "image_seq_length": 18},
        "runtime": {"num_iterations": 1},
    })  # fmt: skip


def model_of(kind: str) -> Any:
    """Return the Hugging Face model of `qwen_checkpoint`."""
    import torch

    _, model = _classes(kind)
    return model.from_pretrained(qwen_checkpoint(kind), dtype=torch.float32)


def logits_of(model: Any, batch: Any) -> Any:
    """Return what Hugging Face makes of a batch: [samples, tokens, vocabulary].

    It gets the positions: without a word between them, it takes two images for one.
    """
    images = batch["modality_inputs"]["images"]["vit_encoder"]
    return model(
        input_ids=batch["input_ids"],
        position_ids=batch["position_ids"],
        pixel_values=images["hidden_states"],
        image_grid_thw=images["grid_thw"],
    ).logits
