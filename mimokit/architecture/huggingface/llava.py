"""Hugging Face configs of LLaVA: a vision tower, two matrices with a GELU, and a language model."""

from typing import Any

from mimokit.architecture.huggingface.encoders import VISION_DEFAULTS, vision_fields
from mimokit.architecture.huggingface.fields import Fields
from mimokit.architecture.huggingface.functions import ACTIVATION_NAMES
from mimokit.architecture.huggingface.language import (
    LANGUAGE_TYPES,
    LLAMA_DEFAULTS,
    language_fields,
)
from mimokit.architecture.huggingface.networks import Networks, projector_fields
from mimokit.architecture.huggingface.unreadable import check_readable
from mimokit.config.meaning import NetworkMeanings

FEATURE_LAYER = -2
IMAGE_TOKEN, QWEN_IMAGE_TOKEN = 32000, 151655
"""transformers `LlavaConfig`: defaults of vision_feature_layer and image_token_index; those of
Qwen-VL of the latter."""

PROJECTOR_ACTIVATION = "gelu"
"""The one that a projector can run with, between its two matrices."""

_STRATEGIES = ("default", "full")


def llava(fields: Fields) -> Networks:
    """Return the networks of LLaVA; problems are left in the fields."""
    vision, text = fields.section("vision_config"), fields.section("text_config")
    tower = vision.text("model_type", "clip_vision_model")
    defaults = VISION_DEFAULTS.get(tower, {})
    encoder = vision_fields(fields.section("vision_config", defaults), tower)
    kind = text.text("model_type", "llama")
    text_defaults = LLAMA_DEFAULTS if kind == "llama" else {}
    check_readable("Language models", kind, LANGUAGE_TYPES)
    tied = fields.flag("tie_word_embeddings")
    language = language_fields(fields.section("text_config", text_defaults), kind, tied)
    biased = fields.flag("multimodal_projector_bias", default=True)
    encoder["projector"] = projector_fields(language["hidden_size"], language)
    encoder["projector"] |= {} if biased else {"add_bias_linear": False}
    _check_activation(fields)
    image_token(fields)
    return Networks(language, encoder, {**encoder, **_features(fields, encoder)})


def image_token(fields: Fields) -> int:
    """Return the token id whose embeddings are replaced by those of an image."""
    name = "image_token_id" if "image_token_id" in fields else "image_token_index"
    qwen = fields.text("model_type", "llava").startswith("qwen")
    return fields.size_or(name, QWEN_IMAGE_TOKEN if qwen else IMAGE_TOKEN)


def _features(fields: Fields, encoder: dict[str, Any]) -> dict[str, Any]:
    """Return what is different in the part of a tower whose output the projector takes."""
    strategy = fields.text("vision_feature_select_strategy", "default")
    if strategy not in _STRATEGIES:
        fields.refuse("vision_feature_select_strategy", "write default or full")
    elif strategy == "default" and not encoder["class_token"]:
        fields.refuse(
            "vision_feature_select_strategy",
            "default drops the first patch of a tower without a class token; write full",
        )
    return {
        "num_layers": _layers(fields, encoder["num_layers"]),
        "post_layer_norm": False,
        "keep_class_token": encoder["class_token"] and strategy == "full",
        NetworkMeanings.one_row.field: None,
    }


def _layers(fields: Fields, layers: int) -> int:
    # Hidden state 0 is the embedding, state n is behind n layers.
    name = "vision_feature_layer"
    state = fields.one_integer(name, FEATURE_LAYER)
    number = state if state >= 0 else layers + 1 + state
    if 1 <= number <= layers:
        return number
    fields.refuse(name, f"the tower has {layers} layers; write -{layers} to -1, or 1 to {layers}")
    return layers


def _check_activation(fields: Fields) -> None:
    name = "projector_hidden_act"
    written = fields.text(name, PROJECTOR_ACTIVATION)
    if ACTIVATION_NAMES.get(written, written) != PROJECTOR_ACTIVATION:
        fields.refuse(name, f"a projector can run with {PROJECTOR_ACTIVATION}")
