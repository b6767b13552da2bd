"""Tiny LLaVAs that read digits, and what Hugging Face makes of them."""

import functools
from pathlib import Path
from typing import Any

from mimokit.config import ExperimentConfig
from mimokit.config_files import config_from_mapping
from mimokit.interop import config_of_checkpoint
from tests.hugging_face_weights import GROUPED, SIZES, kept_folder

IMAGE_TOKEN = 20
VOCABULARY = 23
"""No tensor parallel size divides it."""

VISION = {**SIZES, "image_size": 8, "patch_size": 4, "num_channels": 1}
TEXT = {**GROUPED, "vocab_size": VOCABULARY}
VARIANTS: dict[str, dict[str, Any]] = {
    "clip": {"vision": "clip_vision_model", "text": "llama"},
    "clip_full": {
        "vision": "clip_vision_model", "text": "qwen2", "vision_feature_layer": 2,
        "vision_feature_select_strategy": "full", "tie_word_embeddings": True,
    },
    "siglip": {
        "vision": "siglip_vision_model", "text": "mistral", "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full", "multimodal_projector_bias": False,
    },
}  # fmt: skip
"""What their configs state beyond the sizes."""


@functools.cache
def llava_checkpoint(variant: str, std: float = 0.2) -> Path:
    """Return the directory of a LLaVA in fp32, made once per process; all parameters are random."""
    import torch
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    stated = dict(VARIANTS[variant])
    tied = stated.get("tie_word_embeddings", False)
    text = {**TEXT, "model_type": stated.pop("text"), "tie_word_embeddings": tied}
    vision = {**VISION, "model_type": stated.pop("vision")}
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE_TOKEN, **stated
    )
    torch.manual_seed(len(variant))
    model = LlavaForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std)
    path = kept_folder() / f"llava-{variant}"
    model.save_pretrained(path)
    return path


def llava_config(
    variant: str, mode: str, images: dict[str, int], words: dict[str, int], samples: int = 4
) -> ExperimentConfig:
    """Return a config that was imported from a LLaVA, in a layout, with strips of digits.

    Args:
        variant: of `VARIANTS`.
        mode: deployment mode.
        images: parallel sizes of the tower.
        words: of the language model.
        samples: of a step.
    """
    content = config_of_checkpoint(llava_checkpoint(variant), seq_length=24).to_mapping()
    content["model"] |= {
        "deployment_mode": mode,
        "module_parallelisms": {"images": images, "language_module": words},
    }
    replicas = words.get("data_parallel", 1)
    content["data"] |= {"base_batch_size": samples // replicas, "image_seq_length": 15}
    content["runtime"] = {"num_iterations": 1}
    return config_from_mapping(content)


def logits_of(model: Any, batch: Any) -> Any:
    """Return what Hugging Face's LLaVA makes of a batch: [samples, tokens, vocabulary]."""
    (pixels,) = batch["modality_inputs"]["images"]["vit_encoder"].values()
    return model(input_ids=batch["input_ids"], pixel_values=pixels.unsqueeze(1)).logits
