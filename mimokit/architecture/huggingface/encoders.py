"""Hugging Face configs of vision and audio encoders."""

from collections.abc import Mapping
from typing import Any

from mimokit.architecture.huggingface.fields import Fields
from mimokit.architecture.huggingface.functions import computed_fields

_VIT_BASE = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
}
VISION_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "clip_vision_model": {**_VIT_BASE, "patch_size": 32},
    "siglip_vision_model": {**_VIT_BASE, "patch_size": 16},
}
"""transformers `CLIPVisionConfig` and `SiglipVisionConfig`: defaults for a nested section."""


def vision_fields(fields: Fields, kind: str) -> dict[str, Any]:
    """Return the network of CLIP's or SigLIP's vision tower."""
    clip = kind == "clip_vision_model"
    image, patch = fields.size("image_size"), fields.size("patch_size")
    if patch > image:
        fields.refuse("patch_size", f"it contradicts image_size {image}, which it must not exceed")
    return {
        **plain_layers(fields, fields.size("num_hidden_layers")),
        "ffn_hidden_size": fields.size("intermediate_size"),
        **computed_fields(fields, kind),
        **of_images(image, patch, channels=fields.size_or("num_channels", 3, least=1)),
        "class_token": clip,
        "patch_bias": not clip,
        "outer_norms": 2 if clip else 1,
        "pooling_head": not clip and fields.flag("vision_use_head", default=True),
    }


def of_images(image: int, patch: int, merge: int = 1, *, channels: int) -> dict[str, Any]:
    """Return the fields about images; of one that no patches fill, so much as they fill."""
    side = image // (patch * merge) * merge
    return {
        "vocab_size": 0,
        "seq_length": side**2,
        "image_size": side * patch,
        "patch_size": patch,
        "num_channels": channels,
        "merge_size": merge,
        "class_token": False,
    }


def plain_layers(
    fields: Fields,
    layers: int,
    width: str = "hidden_size",
    heads_names: tuple[str, ...] = ("num_attention_heads", "num_heads"),
) -> dict[str, Any]:
    """Return the sizes of layers by the names of their fields; other fields mean what is usual."""
    hidden, heads = fields.size(width), fields.size(*heads_names)
    fields.must_divide(heads, hidden, heads_names[0], width)
    return {"num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}


def whisper_fields(fields: Fields) -> dict[str, Any]:
    """Return the network of Whisper's encoder, whose key projections have no bias."""
    layers = plain_layers(
        fields, fields.size("encoder_layers"), "d_model", ("encoder_attention_heads",)
    )
    return {
        **layers,
        "ffn_hidden_size": fields.size("encoder_ffn_dim"),
        "add_key_bias": False,
        "vocab_size": 0,
        "seq_length": fields.size("max_source_positions"),
        "mel_bins": fields.size("num_mel_bins"),
    }
