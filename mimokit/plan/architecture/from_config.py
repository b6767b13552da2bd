"""The model that a config describes, as mimokit's own engine builds it."""

from __future__ import annotations

import math

from mimokit.config import MimoParallelismConfig, ModuleArchitecture
from mimokit.plan.architecture.models import (
    AudioEncoder,
    EncoderBranch,
    LanguageModel,
    MultimodalModel,
    Projector,
    VisionEncoder,
)
from mimokit.plan.architecture.transformer import Transformer
from mimokit.plan.tokens import audio_geometry, image_geometry


def model_of_config(model: MimoParallelismConfig, name: str = "model") -> MultimodalModel:
    """Return the description of the networks in a config.

    Megatron's defaults: LayerNorm, GELU, biases, as many key heads as query heads, rotary
    positions in the language model and learned ones in encoders; tied embeddings where the config
    says so.

    Raises:
        ConfigError: a module has no architecture.
    """
    language = model.get_architecture(model.llm_module_name)
    branches = tuple(
        _branch(encoder, model.get_architecture(encoder), language)
        for encoder in model.encoder_module_names
    )
    described = LanguageModel(
        model.llm_module_name,
        _net(language, True),
        language.vocab_size,
        tied=language.tied_embeddings,
    )
    return MultimodalModel(name, described, branches)


def _net(size: ModuleArchitecture, causal: bool) -> Transformer:
    return Transformer(
        layers=size.num_layers,
        hidden=size.hidden_size,
        heads=size.num_attention_heads,
        kv_heads=size.num_attention_heads,
        head_dim=size.hidden_size // size.num_attention_heads,
        ffn=size.feed_forward_size,
        gated=False,
        norm="layer",
        qkv_bias=True,
        output_bias=True,
        ffn_bias=True,
        causal=causal,
    )


def _branch(name: str, size: ModuleArchitecture, language: ModuleArchitecture) -> EncoderBranch:
    """Return an encoder and `MultimodalProjector`, inside as wide as the language model's ffn."""
    audio = size.modality == "audio"
    encoder = _audio_encoder(name, size) if audio else _vision_encoder(name, size)
    inward = size.hidden_size * (size.merge_size if audio else size.merge_size**2)
    widths = (inward, language.feed_forward_size, language.hidden_size)
    return EncoderBranch(name, encoder, Projector(widths))


def _vision_encoder(name: str, size: ModuleArchitecture) -> VisionEncoder:
    """Return a ViT; of the learned positions in front only the class token has an embedding."""
    geometry = image_geometry(size)
    return VisionEncoder(
        name=name,
        net=_net(size, causal=False),
        image_size=math.isqrt(geometry.height * geometry.width),
        patch_size=geometry.patch_size,
        channels=geometry.num_channels,
        merge=geometry.merge_size,
        positions=geometry.patches + size.class_token,
        class_token=size.class_token,
        registers=size.num_registers,
    )


def _audio_encoder(name: str, size: ModuleArchitecture) -> AudioEncoder:
    geometry = audio_geometry(size)
    return AudioEncoder(name, _net(size, causal=False), geometry.mel_bins, geometry.positions)
