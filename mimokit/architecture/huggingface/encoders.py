"""Hugging Face configs of vision and audio encoders."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mimokit.architecture.encoders import AudioEncoder, VisionEncoder
from mimokit.architecture.huggingface.fields import Fields
from mimokit.architecture.huggingface.functions import functions_of_section
from mimokit.architecture.huggingface.language import activation_of
from mimokit.architecture.transformer import Transformer

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


def vision_encoder(fields: Fields, kind: str, name: str) -> VisionEncoder:
    """Return CLIP's or SigLIP's vision tower."""
    clip = kind == "clip_vision_model"
    image, patch = fields.size("image_size"), fields.size("patch_size")
    _check_patch(fields, patch, image)
    functions = functions_of_section(fields, kind)
    class_tokens = 1 if clip else 0
    return VisionEncoder(
        name=name,
        net=replace(
            plain_net(fields, fields.size("num_hidden_layers")),
            activation=activation_of(fields, functions, gated=False),
            epsilon=functions.epsilon,
        ),
        image_size=image,
        patch_size=patch,
        channels=fields.size_or("num_channels", 3, least=1),
        positions=(image // patch) ** 2 + class_tokens,
        class_token=clip,
        biased_patches=not clip,
        norms=2 if clip else 1,
        pools=not clip and fields.flag("vision_use_head", default=True),
    )


def _check_patch(fields: Fields, patch: int, image: int) -> None:
    if patch > image:
        fields.refuse("patch_size", f"it contradicts image_size {image}, which it must not exceed")


def plain_net(
    fields: Fields,
    layers: int,
    width: str = "hidden_size",
    heads_names: tuple[str, ...] = ("num_attention_heads", "num_heads"),
    ffn: str = "intermediate_size",
) -> Transformer:
    """Return layers with LayerNorm, GELU and biases everywhere, by the names of their fields."""
    hidden, heads = fields.size(width), fields.size(*heads_names)
    fields.must_divide(heads, hidden, heads_names[0], width)
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=fields.size(ffn),
        gated=False,
        norm="LayerNorm",
        qkv_bias=True,
        output_bias=True,
        ffn_bias=True,
        causal=False,
    )


def whisper_encoder(fields: Fields, name: str) -> AudioEncoder:
    """Return Whisper's encoder; its key projections have no bias."""
    names = "d_model", ("encoder_attention_heads",), "encoder_ffn_dim"
    net = plain_net(fields, fields.size("encoder_layers"), *names)
    return AudioEncoder(
        name=name,
        net=replace(net, key_bias=False),
        mel_bins=fields.size("num_mel_bins"),
        positions=fields.size("max_source_positions"),
    )
